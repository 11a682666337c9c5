package ledger

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// A sector is what a disk writes wholly or not at all; and a write(2) in which a process dies has
// written whole pages. Each sector of a ledger says, under a checksum of its own, which batch it is
// a part of, and which part. So a batch that a crash has torn can be told from damage: of a torn
// batch each sector is whole, or still zero.
//
//	byte  0      mark, never 0: a file that is cut off within a sector does not end in zeros
//	byte  1      0
//	bytes 2-3    how many bytes of the payload the sector has; the last sector may have fewer
//	bytes 4-7    CRC-32C of the file's id and all other bytes of the sector
//	bytes 8-15   number of the batch in the file, from 1
//	bytes 16-19  number of the sector in the batch, from 0
//	bytes 20-23  how many sectors the batch has
//	bytes 24-27  chain: CRC-32C of the chain of the batch before, and of this one's payload
//	bytes 28-    payload, then zeros
//
// All numbers are little endian. The numbers show as damage a sector that is in another sector's
// place. The id shows as damage a sector of another ledger, or of this ledger before it was written
// anew. The chain shows as damage a batch, or a part of a batch, that had the same number in
// another life of the file: a copy of the file may have gone on differently.
const (
	sectorSize = 512
	sectorHead = 28
	payloadMax = sectorSize - sectorHead // bytes of payload in a sector
	sectorMark = 0xB7
)

var zeroSector [sectorSize]byte

// part is what a sector says of itself.
type part struct {
	batch        uint64
	index, count uint32
	chain        uint32
	payload      []byte
}

// sectors returns how many sectors a payload of `payload` bytes takes.
func sectors(payload int) int { return (payload + payloadMax - 1) / payloadMax }

// sectorSum returns the checksum of a sector of a file.
func sectorSum(id uint64, s []byte) uint32 {
	var file [8]byte
	binary.LittleEndian.PutUint64(file[:], id)
	sum := crc32.Update(0, castagnoli, file[:])
	sum = crc32.Update(sum, castagnoli, s[:4])
	return crc32.Update(sum, castagnoli, s[8:sectorSize])
}

// chainOn returns the chain of a batch with a payload; before is the chain of the batch before it.
func chainOn(before uint32, payload []byte) uint32 {
	var b [4]byte
	binary.LittleEndian.PutUint32(b[:], before)
	return crc32.Update(crc32.Update(0, castagnoli, b[:]), castagnoli, payload)
}

// appendBatch appends a batch's sectors to dst.
func appendBatch(dst []byte, id, batch uint64, chain uint32, payload []byte) []byte {
	count := sectors(len(payload))
	for i := range count {
		var s [sectorSize]byte
		n := copy(s[sectorHead:], payload[i*payloadMax:])
		s[0] = sectorMark
		binary.LittleEndian.PutUint16(s[2:], uint16(n))
		binary.LittleEndian.PutUint64(s[8:], batch)
		binary.LittleEndian.PutUint32(s[16:], uint32(i))
		binary.LittleEndian.PutUint32(s[20:], uint32(count))
		binary.LittleEndian.PutUint32(s[24:], chain)
		binary.LittleEndian.PutUint32(s[4:], sectorSum(id, s[:]))
		dst = append(dst, s[:]...)
	}
	return dst
}

// parseSector checks a sector, and returns what the sector says. place is only for the text of an
// error.
func parseSector(id uint64, place int64, s []byte) (part, error) {
	if sectorSum(id, s) != binary.LittleEndian.Uint32(s[4:]) {
		return part{}, damaged("sector %d: %w", place, errChecksum)
	}
	p := part{
		batch: binary.LittleEndian.Uint64(s[8:]),
		index: binary.LittleEndian.Uint32(s[16:]),
		count: binary.LittleEndian.Uint32(s[20:]),
		chain: binary.LittleEndian.Uint32(s[24:]),
	}
	n := int(binary.LittleEndian.Uint16(s[2:]))
	last := p.index+1 == p.count
	if s[0] != sectorMark || s[1] != 0 || p.index >= p.count || n == 0 || n > payloadMax || !last && n < payloadMax {
		return part{}, damaged("sector %d is not a sector of a ledger", place)
	}
	p.payload = s[sectorHead:][:n]
	return p, nil
}

// A ledger's first sector says which ledger it is:
//
//	bytes 0-15   fileMagic
//	bytes 16-19  version of this form
//	bytes 20-23  CRC-32C of all other bytes
//	bytes 24-31  id, random, another one each time that the ledger is written anew
//	bytes 32-39  how many batches the snapshot has, with which the file begins
//	bytes 40-47  how many bytes of the file were durable when it got its name; nothing of
//	             them can be torn
//	bytes 48-55  number of the snapshot's transaction
//	bytes 56-    zeros
type fileHead struct {
	version  uint32
	id       uint64
	snapshot uint64
	durable  int64
	seq      uint64
}

const (
	fileMagic   = "berth's ledger\n\x00"
	fileVersion = 2 // version 1 was a bbolt file (old.go)
)

func (h fileHead) sector() []byte {
	s := make([]byte, sectorSize)
	copy(s, fileMagic)
	binary.LittleEndian.PutUint32(s[16:], fileVersion)
	binary.LittleEndian.PutUint64(s[24:], h.id)
	binary.LittleEndian.PutUint64(s[32:], h.snapshot)
	binary.LittleEndian.PutUint64(s[40:], uint64(h.durable))
	binary.LittleEndian.PutUint64(s[48:], h.seq)
	binary.LittleEndian.PutUint32(s[20:], fileHeadSum(s))
	return s
}

func fileHeadSum(s []byte) uint32 {
	return crc32.Update(crc32.Checksum(s[:20], castagnoli), castagnoli, s[24:sectorSize])
}

// hasMagic reports whether a file begins like one that parseFileHead can read.
func hasMagic(s []byte) bool { return bytes.HasPrefix(s, []byte(fileMagic)) }

func parseFileHead(s []byte) (fileHead, error) {
	h := fileHead{
		version:  binary.LittleEndian.Uint32(s[16:]),
		id:       binary.LittleEndian.Uint64(s[24:]),
		snapshot: binary.LittleEndian.Uint64(s[32:]),
		durable:  int64(binary.LittleEndian.Uint64(s[40:])),
		seq:      binary.LittleEndian.Uint64(s[48:]),
	}
	if fileHeadSum(s) != binary.LittleEndian.Uint32(s[20:]) {
		return h, damaged("first sector: %w", errChecksum)
	}
	if h.version > fileVersion {
		return h, fmt.Errorf("the file has version %d, this program knows versions up to %d: %w", h.version, fileVersion, ErrNewer)
	}
	return h, nil
}
