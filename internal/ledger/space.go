package ledger

import (
	"errors"
	"fmt"
	"time"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// A full disk stops ADD first and DEL last. The file is preallocated, so that no write goes
// into a hole. It has a reserve: pages that only deletions may use. An op that adds to the
// ledger is refused if it would use up the reserve.
//
// A deletion needs room, too. bbolt writes changed pages to free ones and frees the old ones
// only afterwards. And the deletion's small records (releasing, rests, tombstone) need room
// until the owner's own record is gone.
const (
	// baseReserve is room for one transaction of maxPages, with the branch pages that
	// it changes.
	baseReserve = 1024 // pages
	// ownersPerPage is how many owners' small records fit into a page that is half
	// full.
	ownersPerPage = 4
	// minTail is how many of the spare pages have to be at the end of the file, in one
	// piece. An owner of MaxOwner bytes shares a leaf with up to three others, and bbolt
	// writes a leaf in one piece. There is room for two such leaves, because the pages
	// that the first one leaves free may be in pieces.
	minTail = 2 * (4*MaxOwner/pageSize + 1)
	// growBy is how much the file grows at least, as long as the disk has room.
	growBy = 256 // pages
	// topUpRetry is how long the writer waits before it tries again to grow the file
	// ahead of need, after the disk was full.
	topUpRetry = time.Second
)

// reserve returns how many pages are kept for deletions, with so many owners.
func reserve(owners int) int { return baseReserve + owners/ownersPerPage }

// pagesFor returns how many pages an owner's record of so many bytes may take, with its
// share of other pages.
func pagesFor(size int) int { return 2 + size/pageSize }

// room says how full the file is, in pages.
type room struct {
	file int       // the file's size
	high int       // high water mark: pages from here on were never used
	free int       // free pages before the high water mark
	full time.Time // when growing the file ahead of need last failed
}

// tail returns how many pages lie behind the high water mark, without one that bbolt wants
// there.
func (r room) tail() int { return max(0, r.file-r.high-1) }

// short returns by how many pages the file must grow to have so many above the reserve. If
// it is not above 0 the file has them.
func (r room) short(owners, pages int) int {
	return max(pages+reserve(owners)-r.free-r.tail(), minTail-r.tail())
}

// ensure makes sure that the file has so many pages above the reserve, and grows it if need
// be.
func (s *store) ensure(owners, pages int) error {
	short := s.room.short(owners, pages)
	if short <= 0 {
		return nil
	}
	err := s.grow(max(short, growBy, s.room.file/8))
	if errors.Is(err, ErrFull) {
		err = s.grow(short)
	}
	return err
}

// topUp grows the file ahead of need, while nobody waits for it.
func (s *store) topUp(owners int) {
	if s.failed != nil || time.Since(s.room.full) < topUpRetry {
		return
	}
	if err := s.ensure(owners, growBy/2); err != nil {
		s.room.full = time.Now()
	}
}

// takeStock asks bbolt, after a transaction, how full the file is. It counts pages that the
// transaction has freed as free, because the next transaction can use them.
func (s *store) takeStock() {
	stats := s.db.Stats()
	s.room.free = stats.FreePageN + stats.PendingPageN
	s.look(func(tx *bolt.Tx) { s.room.high = int(tx.Size() / pageSize) })
}

// settle prepares the file when it is opened: it fills holes, which copying may have made,
// and makes sure of spare pages. A full disk is no error here, because deletions still work.
func (s *store) settle(owners int) error {
	info, err := s.file.Stat()
	if err != nil {
		return err
	}
	s.room.file = int(info.Size() / pageSize)
	if err := allocate(s.file, 0, info.Size()); err != nil && !isFull(err) {
		return err
	}
	if err := s.ensure(owners, growBy); err != nil && !errors.Is(err, ErrFull) {
		return err
	}
	return nil
}

// grow adds pages to the file. When it returns nil they are allocated and the new size is
// durable. If the disk has no room for them the error is ErrFull.
func (s *store) grow(pages int) error {
	from, to := int64(s.room.file)*pageSize, int64(s.room.file+pages)*pageSize
	err := allocate(s.file, from, to)
	if err == nil {
		err = s.file.Sync()
	}
	if err != nil {
		err = errors.Join(fmt.Errorf("growing the ledger: %w", err), s.file.Truncate(from))
		if isFull(err) {
			err = fmt.Errorf("%w: %w", ErrFull, err)
		}
		return err
	}
	s.room.file += pages
	return nil
}

// isFull reports whether an error says that there is no room on the disk.
func isFull(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EFBIG)
}
