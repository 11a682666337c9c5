package ledger

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"
)

// store is the ledger's file. Only the writer uses it.
type store struct {
	opts     Options
	file     file
	mine     atomic.Pointer[[]os.FileInfo] // the files of which each may have the ledger's name: one, or two while the name passes on
	size     int64                         // of the file, at least
	end      int64                         // up to here the file has zeros behind its tail that were written and are durable
	logFile                                // what the file has
	exits    int                           // sectors that the deletions of all owners may take, as exit says
	head     []byte
	stale    bool // the file's head differs from `head`: the next batch writes it
	opened   opening
	failed   error      // not nil: nobody knows what the file contains, and nothing is written any more
	full     time.Time  // when the disk had no room to grow the file ahead of need; zero: it has room
	next     *rewriting // nil: the file is not being written anew
	tired    time.Time  // when the last try to write the file anew failed
	rewrites uint64
	payload  []byte // of the batch that is being written; kept to be used again
	sectors  []byte // likewise
}

// openStore opens or creates the file and reads it.
func openStore(opts Options) (*store, state, error) {
	if opts.volume == nil {
		opts.volume = local{}
	}
	var err error
	if opts.Path, err = resolve(opts.Path); err != nil {
		return nil, state{}, explain(err)
	}
	f, size, err := openFile(opts)
	if err != nil {
		return nil, state{}, err
	}
	s := &store{opts: opts, file: f, size: size}
	state, err := s.read()
	if err != nil {
		s.file.Close()
		return nil, state, err
	}
	return s, state, nil
}

// read reads the file, and makes it ready to be written to.
func (s *store) read() (state, error) {
	var opened opening
	l, err := load(s.file, s.size, s.opts.Path, s.opts.Kinds, func(was opening) reading {
		opened = was.first(s.opts.Clock, s.opts.Boot)
		return opened.by(s.opts.Clock)
	})
	if err != nil {
		return state{}, err
	}
	s.opened, s.exits = opened, l.exits
	l.state.prune(plain(s.opts.Clock.Now()), s.opts.Clock.Boottime())
	if err := removeAsides(s.opts); err != nil {
		return state{}, err
	}
	if l.log != nil {
		s.logFile, s.head = *l.log, bytes.Clone(l.headBody) // headBody is a part of a large payload
		err = s.mend()
	} else {
		err = s.replaceOld(l)
	}
	if err == nil {
		err = s.prepare()
	}
	if err == nil {
		err = s.own(s.file)
	}
	if err != nil {
		return state{}, fmt.Errorf("preparing %s: %w", s.opts.Path, err)
	}
	head, err := s.headOf(l.state.epoch, l.state.first, l.state.quarantine)
	s.stale = !bytes.Equal(head, s.head)
	return l.state, err
}

// mend makes zeros of a torn batch, and makes the last batch, the zeros behind it and the file's
// name durable. A process that died, or to whom a sync has failed, may have left the last batch
// in the page cache alone; so mend writes that batch once more, with the same bytes that the file
// has. The process may also have died after it had given the file its name, and before it had
// synced the folder; so mend syncs the folder.
func (s *store) mend() error {
	if err := s.opts.volume.syncDir(filepath.Dir(s.opts.Path)); err != nil {
		return err
	}
	if s.torn > 0 {
		if err := zero(s.file, s.tail, s.torn); err != nil {
			return err
		}
	}
	if s.last >= s.durable {
		last := make([]byte, s.tail-s.last)
		if _, err := s.file.ReadAt(last, s.last); err != nil && err != io.EOF {
			return err
		}
		if _, err := s.file.WriteAt(last, s.last); err != nil {
			return err
		}
	}
	return s.file.Datasync()
}

func (s *store) close() error {
	if r := s.next; r != nil {
		s.next = nil
		r.cancel.Store(true)
		<-r.done
		s.discard(r.to)
	}
	return s.file.Close()
}

// seq returns the number of the last transaction.
func (s *store) seq() uint64 { return s.logFile.seq + s.batch - s.snapshot }

// headOf returns the head's JSON.
func (s *store) headOf(epoch Epoch, first *First, q kept) ([]byte, error) {
	h := head{Schema: Schema, Epoch: epoch, First: first}
	if s.opened.Boot != "" {
		h.Opened = &s.opened
	}
	h.rest(q)
	body, err := json.Marshal(&h)
	if err != nil {
		return nil, fmt.Errorf("encoding head: %w", err)
	}
	return body, nil
}

// write makes a batch durable. After an error the file is as before or, if that is not
// certain, the store has failed for good.
func (s *store) write(b *batch) error {
	head, err := s.headOf(b.epoch, b.first, b.quarantine)
	if err != nil {
		return err
	}
	c := changes{payload: s.payload[:0]}
	if !bytes.Equal(head, s.head) {
		c.put(bucketMeta, headKey, head)
	}
	if c.encode(b); c.err != nil || len(c.payload) == 0 {
		return c.err
	}
	if err := s.append(c.payload); err != nil {
		return err
	}
	s.head, s.stale = head, false
	if s.opts.wrote != nil {
		s.opts.wrote(len(c.payload), b.bytes)
	}
	if s.next != nil {
		s.next.since = append(s.next.since, bytes.Clone(c.payload))
	}
	if s.payload = c.payload; cap(s.payload) > keepBuffer {
		s.payload, s.sectors = nil, nil
	}
	return nil
}

// keepBuffer is how many bytes of a buffer are kept for the next transaction.
const keepBuffer = 256 << 10

// append makes a payload the next batch: one write and one sync.
func (s *store) append(payload []byte) error {
	if short := sectors(len(payload)) - s.free(); short > 0 {
		if err := s.grow(short); err != nil {
			return err
		}
	}
	if err := s.intact(); err != nil {
		return err
	}
	chain := chainOn(s.chain, payload)
	s.sectors = appendBatch(s.sectors[:0], s.id, s.batch+1, chain, payload)
	n, err := s.file.WriteAt(s.sectors, s.tail)
	if err != nil {
		if isFull(err) && s.erase(s.tail+int64(n)) == nil {
			return fmt.Errorf("%w: %w", ErrFull, err)
		}
		return s.fail(err)
	}
	if err := s.file.Datasync(); err != nil {
		return s.fail(err)
	}
	s.last = s.tail
	s.logEnd = logEnd{s.batch + 1, chain, s.tail + int64(len(s.sectors))}
	return nil
}

// erase takes back what was written of a batch up to an offset, behind which somebody has
// made a hole and the disk has no room.
func (s *store) erase(to int64) error {
	if err := errors.Join(zero(s.file, s.tail, to), s.file.Datasync()); err != nil {
		return err
	}
	s.end = to / sectorSize * sectorSize
	return nil
}

// intact makes sure that nobody has cut the file off. Otherwise a write would make it longer
// again, with a hole in it.
func (s *store) intact() error {
	if s.failed != nil {
		return s.failed
	}
	info, err := s.file.Stat()
	if err == nil && info.Size() < s.size {
		err = fmt.Errorf("it was cut off after %d bytes, and had %d", info.Size(), s.size)
	}
	if err != nil {
		return s.fail(err)
	}
	return nil
}

func (s *store) fail(err error) error {
	s.failed = fmt.Errorf("%w, restart the agent: %w", ErrFailed, err)
	return s.failed
}
