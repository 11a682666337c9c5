package ledger

import (
	"errors"
	"fmt"
	"time"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// A full disk stops ADD first and DEL last. The file is preallocated (no write
// goes into a hole), and what adds to the ledger is refused when it would use
// up the reserve: pages inside the file for what deletions write.
//
// bbolt writes changed pages to free ones and frees the old ones afterwards, so
// a deletion needs room for as long as it takes, and its small records
// (releasing, rests, tombstone) need some until the owner's own is gone.
const (
	// baseReserve is room for one transaction of maxPages, with what it
	// changes in branch pages.
	baseReserve = 1024 // pages
	// ownersPerPage is of how many owners the small records fit into a page
	// that is half full.
	ownersPerPage = 4
	// minTail is how many of the spare pages are at the end of the file, in
	// one piece: an owner of MaxOwner bytes shares a leaf with up to three
	// others, and the leaf is written in one piece. There is room for two such
	// leaves, since what the first one leaves free may be in pieces.
	minTail = 2 * (4*MaxOwner/pageSize + 1)
	// growBy is the least that the file grows by.
	growBy = 256 // pages
	// topUpRetry is how long the writer leaves it at that, when the disk was
	// full as it grew the file ahead of need.
	topUpRetry = time.Second
)

// reserve is how many pages are kept for deletions, with so many owners.
func reserve(owners int) int { return baseReserve + owners/ownersPerPage }

// pagesFor is how many pages an owner's record of so many bytes may take, with
// its share of others.
func pagesFor(size int) int { return 2 + size/pageSize }

// room is how full the file is, in pages.
type room struct {
	file int       // its size
	high int       // high water mark: pages behind were never used
	free int       // free pages before it
	full time.Time // when it could last not be grown ahead of need
}

// tail is how many pages lie behind the high water mark; bbolt wants one there.
func (r room) tail() int { return max(0, r.file-r.high-1) }

// short is by how many pages the file must grow to have so many above the
// reserve; not above 0: it has them.
func (r room) short(owners, pages int) int {
	return max(pages+reserve(owners)-r.free-r.tail(), minTail-r.tail())
}

// ensure sees to it that there are so many pages above the reserve, and grows
// the file if need be.
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

// takeStock asks bbolt, after a transaction, how full the file is. Pages that
// the transaction has freed are free in the next one.
func (s *store) takeStock() {
	stats := s.db.Stats()
	s.room.free = stats.FreePageN + stats.PendingPageN
	s.look(func(tx *bolt.Tx) { s.room.high = int(tx.Size() / pageSize) })
}

// settle prepares the file when it is opened, and fills holes that
// copying may have made. A full disk is not an error here: what is in the file
// can still be deleted.
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

// grow adds pages to the file, for good: they are allocated and the new size
// is durable. ErrFull says that they are not to be had.
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
