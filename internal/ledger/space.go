package ledger

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/hold"
)

// A full disk stops ADD first and DEL last. The zeros behind the log's tail are there before
// they are needed, and the last of them are a reserve. A commit that would use up what it has
// to leave of the reserve is refused: class says how much that is. A part of the reserve, the
// exits, belongs to the owners: it has room for the deletion of each. Only the deletion of an owner
// uses the exits, and takes no more of them than the owner's own part. So each owner can be
// released, no matter what else is committed, and how often.
//
// The zeros are written, not only allocated: otherwise each commit would change the file
// system's metadata as well, and its sync would cost a second write.
const (
	// baseReserve is room for commits that neither add owners nor release any: tombstones
	// of keys that no owner has, and, in one half of it, changes of owners that need no
	// more room than before.
	baseReserve = 2048 // sectors
	// headReserve is room for what an agent writes when it starts in a new boot.
	headReserve = 64 // sectors
	// promise is room for the commit that promises an owner's deletion, with a tombstone
	// whose key may have MaxName bytes.
	promise = 3 // sectors
	// growBy is how much the file grows at least, as long as the disk has room.
	growBy = 512 // sectors
	// topUpRetry is how long the writer waits before it tries again to grow the file
	// ahead of need, after the disk was full.
	topUpRetry = time.Second
)

// class is what a commit does, as far as a full disk matters. On a full disk, commits of a class
// that comes later in the list stop sooner.
type class int

const (
	starting class = iota // sets epoch, first agent or quarantine
	burying               // releases, forgets and buries, and takes more than the owners' exits
	changing              // changes owners, which then need no more room than before
	adding                // adds owners, or makes them larger
)

// leaves returns how many sectors a commit must leave, beside the exits.
func (c class) leaves() int {
	return [...]int{starting: 0, burying: headReserve, changing: headReserve + baseReserve/2, adding: headReserve + baseReserve}[c]
}

// reserve returns how many sectors of zeros a ledger has on a disk that is not full, if the exits
// of its owners take `exits` sectors.
func reserve(exits int) int { return exits + adding.leaves() }

// exit returns how many sectors an owner's deletion may take, with a commit for each step
// that is left of it: the promise, and the end, with a rest for each name.
func exit(o *hold.Owner) int {
	end := 2 * dropBytes(len(o.ID)) // the owner, and since when it is releasing
	for _, n := range o.Names {
		end += putBytes(keyLen(n), restBytes)
	}
	if !o.Wanted() {
		return sectors(end)
	}
	return promise + sectors(end)
}

// bytesFor returns how many bytes the change of an owner may have, if the owner's JSON has `size`
// bytes. The change may also end rests of the names that the JSON has.
func bytesFor(size int) int { return 2*size + 256 }

// free returns into how many sectors the next batches can go. The last one stays zero.
func (s *store) free() int { return int((s.end-s.tail)/sectorSize) - 1 }

// short returns by how many sectors the file must grow, so that batches can go into `need` sectors.
// 0 or less: the file has these sectors.
func (s *store) short(need int) int { return need - s.free() }

// ensure makes sure that batches can go into `need` sectors, and grows the file if it has to. If a
// new file is being written (rewrite), which may have taken the room, ensure waits for that: then
// the old or the new file gives its room back.
func (s *store) ensure(need int) error {
	err := s.enlarge(need)
	if errors.Is(err, ErrFull) && s.next != nil {
		<-s.next.done
		s.takeOver(need)
		err = s.enlarge(need)
	}
	return err
}

// enlarge grows the file, unless batches can go into `need` sectors already.
func (s *store) enlarge(need int) error {
	short := s.short(need)
	if short <= 0 {
		return nil
	}
	err := s.grow(max(short, growBy))
	if errors.Is(err, ErrFull) {
		err = s.grow(short)
	}
	return err
}

// topUp grows the file ahead of need, while nobody waits for it.
func (s *store) topUp() {
	if s.failed != nil || time.Since(s.full) < topUpRetry {
		return
	}
	s.full = time.Time{}
	if err := s.secure(growBy / 2); err != nil {
		s.full = time.Now()
	}
}

// secure grows the file to the reserve and `ahead` more sectors. If the disk has no room for all of
// these, secure grows the file to the reserve or at least to what deletions take, and returns
// ErrFull.
func (s *store) secure(ahead int) error {
	err := s.enlarge(reserve(s.exits) + ahead)
	if !errors.Is(err, ErrFull) {
		return err
	}
	for _, need := range []int{reserve(s.exits), s.exits + burying.leaves()} {
		if less := s.enlarge(need); less == nil {
			break
		} else if !errors.Is(less, ErrFull) {
			return less
		}
	}
	return err
}

// prepare prepares the file when it is opened: it fills holes behind the tail, which copying
// may have made, and makes sure of the reserve. If the disk lacks room for the reserve, prepare
// removes a former ledger (keepFormer) to make room. A full disk is no error here, because
// deletions still work.
func (s *store) prepare() error {
	s.end = s.size / sectorSize * sectorSize
	if hole, err := unix.Seek(int(s.file.Fd()), s.tail, unix.SEEK_HOLE); err == nil {
		s.end = min(s.end, hole/sectorSize*sectorSize)
	}
	s.end = max(s.end, s.tail)
	if short := int((s.size - s.end) / sectorSize); short > 0 {
		if err := s.grow(short); err != nil && !errors.Is(err, ErrFull) {
			return err
		}
	}
	err := s.secure(growBy)
	if errors.Is(err, ErrFull) && s.short(reserve(s.exits)) > 0 {
		if gone, failed := s.dropFormer(); failed != nil {
			return failed
		} else if gone {
			err = s.secure(growBy)
		}
	}
	if errors.Is(err, ErrFull) {
		return nil
	}
	return err
}

// grow writes `by` sectors of zeros. When grow returns nil, these zeros are durable, and so is the
// file's new size. If the disk has no room for them the error is ErrFull.
func (s *store) grow(by int) error {
	if err := s.intact(); err != nil {
		return err
	}
	to := s.end + int64(by)*sectorSize
	err := zero(s.file, s.end, to)
	if err == nil {
		err = s.file.Sync()
	}
	if err != nil {
		err = fmt.Errorf("growing the ledger: %w", err)
		if isFull(err) {
			err = fmt.Errorf("%w: %w", ErrFull, err)
		}
		keep := max(s.end, s.tail+sectorSize)
		if cut := s.file.Truncate(keep); cut != nil {
			return errors.Join(err, cut)
		}
		s.size = keep
		return err
	}
	s.end, s.size = to, max(s.size, to)
	return nil
}

// zeros are never written to, so that they take no memory.
var zeros [256 << 10]byte

// zero writes zeros from one offset to another.
func zero(f file, from, to int64) error {
	for at := from; at < to; {
		n, err := f.WriteAt(zeros[:min(int64(len(zeros)), to-at)], at)
		if err != nil {
			return err
		}
		at += int64(n)
	}
	return nil
}

// isFull reports whether an error says that there is no room on the disk.
func isFull(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EFBIG)
}
