package ledger

import (
	"bytes"
	"fmt"
	"io"
)

// A ledger's file is a log: its first sector (fileHead), a snapshot, which is some batches
// that were written before the file got its name, then one batch for each transaction, and then
// zeros, into which the next batches go. The last sector is always zero, so that a file that was
// cut off can be told from a whole one.

// logEnd is how far a log has come.
type logEnd struct {
	batch uint64 // number of the last batch
	chain uint32 // of the last batch
	tail  int64  // offset of the zeros behind the last batch
}

// logFile is what readLog has read of a log, or what the store has to know to append to a log.
type logFile struct {
	fileHead
	logEnd
	last  int64 // offset of the last batch
	snap  int64 // offset of the end of the snapshot
	torn  int64 // offset of the end of a batch that a crash has torn; 0: there is none
	found found
}

// readLog reads a log of `size` bytes. Damage is a *DamagedError.
//
// A crash tears the last batch at most: each transaction is durable before the next one is
// written. No caller has been told that the commits of a torn batch are durable, and readLog leaves
// the batch out. Every other difference from what was written is damage.
func readLog(f io.ReaderAt, size int64) (*logFile, error) {
	r := &sectorReader{file: f, size: size}
	first, err := r.sector(0)
	if err != nil {
		return nil, err
	}
	l := &logFile{found: newFound()}
	if l.fileHead, err = parseFileHead(first); err != nil {
		return nil, err
	}
	l.tail = sectorSize
	for {
		payload, p, err := l.readBatch(r)
		if err != nil {
			return nil, err
		}
		if payload == nil {
			break
		}
		chain := chainOn(l.chain, payload)
		if chain != p.chain {
			return nil, damaged("batch %d does not follow batch %d", p.batch, l.batch)
		}
		if err := l.found.apply(payload, p.batch <= l.snapshot); err != nil {
			return nil, err
		}
		l.last = l.tail
		l.logEnd = logEnd{p.batch, chain, l.tail + int64(p.count)*sectorSize}
		if p.batch == l.snapshot {
			l.snap = l.tail
		}
	}
	if l.tail < l.durable || l.batch < l.snapshot {
		return nil, damaged("it ends after %d bytes (batch %d), %d bytes and batch %d were durable", l.tail, l.batch, l.durable, l.snapshot)
	}
	return l, l.readTorn(r)
}

// readBatch returns the payload of the next batch and what its sectors say; nil if the next
// batch is not there, or has a sector that is zero.
func (l *logFile) readBatch(r *sectorReader) (payload []byte, first part, err error) {
	place := l.tail / sectorSize
	for i := int64(0); i == 0 || i < int64(first.count); i++ {
		s, err := r.sector(place + i)
		if err != nil {
			return nil, first, err
		}
		if isZero(s) {
			return nil, first, nil
		}
		p, err := l.part(s, place, place+i)
		if err != nil {
			return nil, first, err
		}
		if i == 0 {
			if int64(p.count) > r.size/sectorSize-place {
				return nil, first, damaged("batch %d has %d sectors, and the file ends before", p.batch, p.count)
			}
			payload, first = make([]byte, 0, int(p.count)*payloadMax), p
		}
		if p.count != first.count || p.chain != first.chain {
			return nil, first, damaged("sector %d is of another batch %d", place+i, p.batch)
		}
		payload = append(payload, p.payload...)
	}
	return payload, first, nil
}

// part parses a sector of the next batch, which begins at start.
func (l *logFile) part(s []byte, start, place int64) (part, error) {
	p, err := parseSector(l.id, place, s)
	if err == nil && (p.batch != l.batch+1 || int64(p.index) != place-start) {
		err = damaged("sector %d is part %d of batch %d, want part %d of batch %d", place, p.index, p.batch, place-start, l.batch+1)
	}
	return p, err
}

// readTorn checks everything behind the last batch: there may be a torn batch, and zeros.
func (l *logFile) readTorn(r *sectorReader) error {
	start := l.tail / sectorSize
	var torn part
	place := start
	for ; (place+1)*sectorSize <= r.size; place++ {
		s, err := r.sector(place)
		if err != nil {
			return err
		}
		if isZero(s) {
			continue
		}
		p, err := l.part(s, start, place)
		if err != nil {
			return err
		}
		if torn.count == 0 {
			torn = p
		}
		if p.count != torn.count || p.chain != torn.chain || (place+2)*sectorSize > r.size {
			return damaged("sector %d is of another batch %d, or the file was cut off behind it", place, p.batch)
		}
		l.torn = (start + int64(p.count)) * sectorSize
	}
	if l.torn > place*sectorSize {
		return damaged("batch %d is torn, and cut off", l.batch+1)
	}
	rest := make([]byte, r.size-place*sectorSize)
	if _, err := r.file.ReadAt(rest, place*sectorSize); err != nil && err != io.EOF {
		return fmt.Errorf("reading the last bytes: %w", err)
	}
	if !isZero(rest) {
		return damaged("it is cut off within sector %d", place)
	}
	return nil
}

func isZero(b []byte) bool { return bytes.Equal(b, zeroSector[:len(b)]) }

// sectorReader reads a file's sectors, many at a time.
type sectorReader struct {
	file io.ReaderAt
	size int64
	at   int64 // offset of buf in the file
	buf  []byte
}

const readBy = 256 << 10 // bytes

// sector returns a sector, whose bytes are valid until the next call.
func (r *sectorReader) sector(place int64) ([]byte, error) {
	from := place * sectorSize
	if from+sectorSize > r.size {
		return nil, damaged("it is cut off after %d bytes", r.size)
	}
	if from < r.at || from+sectorSize > r.at+int64(len(r.buf)) {
		if r.buf == nil {
			r.buf = make([]byte, readBy)
		}
		r.at, r.buf = from, r.buf[:min(readBy, r.size-from)]
		if n, err := r.file.ReadAt(r.buf, from); err == io.EOF && n < len(r.buf) {
			return nil, damaged("it is cut off after %d bytes", from+int64(n))
		} else if err != nil && err != io.EOF {
			return nil, fmt.Errorf("reading at %d: %w", from, err)
		}
	}
	return r.buf[from-r.at:][:sectorSize], nil
}
