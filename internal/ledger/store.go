package ledger

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime/debug"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// store is the ledger's file. Only the writer uses it.
type store struct {
	db       *bolt.DB
	boltFile *os.File // bbolt's own
	file     *os.File // another descriptor of the file, to grow it
	head     head     // as it is in the file
	opened   opening
	room     room
	pruning  pruning
	failed   error // not nil: what is on the disk is not known, nothing is written any more
	stuck    bool  // bbolt cannot be closed: it has panicked with its locks held
}

// boltOptions open a file whose bytes were checked (pages.go) and whose
// descriptor and lock are ours.
func boltOptions(open func(string, int, os.FileMode) (*os.File, error)) *bolt.Options {
	return &bolt.Options{
		OpenFile: open,
		PageSize: pageSize,
		// The free list would be written in full by every commit, and a
		// changed byte in it would give out a page that is in use. Without it
		// bbolt finds the free pages by walking the file at open.
		NoFreelistSync: true,
		FreelistType:   bolt.FreelistMapType, // constant time, however many pages are free
		// bbolt must not grow the file, by truncate, into a hole: space.go
		// does, by fallocate and fsync.
		NoGrowSync: true,
		// Address space only: so that the map, which doubles as it grows, need
		// not move in a ledger of up to some 20,000 owners.
		InitialMmapSize: 64 << 20,
	}
}

// openStore opens or creates the file and reads it.
func openStore(opts Options) (*store, state, error) {
	f, err := openFile(opts.Path)
	if err != nil {
		return nil, state{}, err
	}
	var opened opening
	head, state, err := load(f, opts.Path, opts.Kinds, func(was opening) reading {
		opened = was.first(opts.Clock, opts.Boot)
		return opened.by(opts.Clock)
	})
	if err != nil {
		f.Close()
		return nil, state, err
	}
	s := &store{file: f, head: *head, opened: opened}
	if err := s.openBolt(opts.Path); err != nil {
		unix.Flock(int(f.Fd()), unix.LOCK_UN) // or a map that bbolt has left would keep it
		f.Close()
		return nil, state, err
	}
	s.takeStock()
	if err := s.settle(len(state.owners)); err != nil {
		s.close()
		return nil, state, err
	}
	return s, state, nil
}

// openBolt opens bbolt on another descriptor of the open file, so that the
// lock on it, which belongs to the two, is never let go.
func (s *store) openBolt(path string) (err error) {
	defer recoverAs(&err, debug.SetPanicOnFault(true))
	fd, err := unix.FcntlInt(s.file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("fcntl", err)
	}
	s.boltFile = os.NewFile(uintptr(fd), path)
	s.db, err = bolt.Open(path, 0o600, boltOptions(func(string, int, os.FileMode) (*os.File, error) {
		return s.boltFile, nil
	}))
	return err
}

// recoverAs turns a panic of bbolt, or a fault in its map (the file was cut
// off, or the disk cannot be read), into an error.
func recoverAs(err *error, onFault bool) {
	debug.SetPanicOnFault(onFault)
	if r := recover(); r != nil {
		*err = fmt.Errorf("bbolt panicked: %v", r)
	}
}

func (s *store) close() error {
	if s.stuck {
		// bbolt's map of the file stays, and would keep the lock.
		err := unix.Flock(int(s.file.Fd()), unix.LOCK_UN)
		return errors.Join(err, s.boltFile.Close(), s.file.Close())
	}
	return errors.Join(s.db.Close(), s.file.Close())
}

// write makes a batch durable. After an error the file is as before, or, if
// that is not certain, the store has failed for good.
func (s *store) write(b *batch) error {
	next, err := s.transact(b)
	if err == nil {
		s.head = next
		s.takeStock()
		return nil
	}
	if full := (*fs.PathError)(nil); errors.As(err, &full) && isFull(full.Err) && !s.stuck && s.txid() == s.head.Seq {
		// A page could not be written, and nothing refers to it.
		return fmt.Errorf("%w: %w", ErrFull, err)
	}
	s.failed = fmt.Errorf("%w, restart the agent: %w", ErrFailed, err)
	return s.failed
}

// transact writes a batch in one transaction and returns the new head.
func (s *store) transact(b *batch) (next head, err error) {
	s.stuck = true
	defer recoverAs(&err, debug.SetPanicOnFault(true))
	tx, err := s.db.Begin(true)
	if err != nil {
		s.stuck = false
		return head{}, err
	}
	next = head{Schema: Schema, Seq: uint64(tx.ID()), Epoch: b.epoch, First: b.first, Sums: map[string]*sum{}}
	if s.opened.Boot != "" {
		next.Opened = &s.opened
	}
	next.rest(b.quarantine, b.spans)
	for bucket, sum := range s.head.Sums {
		copied := *sum
		next.Sums[bucket] = &copied
	}
	if err := writeBatch(tx, &next, b); err != nil {
		err = errors.Join(err, tx.Rollback())
		s.stuck = false
		return head{}, err
	}
	err = tx.Commit()
	s.stuck = false
	return next, err
}

// look lets see a view of the file, without reading a page of it.
func (s *store) look(see func(*bolt.Tx)) {
	// It cannot fail: bbolt is open, and see does not.
	_ = s.db.View(func(tx *bolt.Tx) error {
		see(tx)
		return nil
	})
}

// txid returns the number of the last transaction in the file.
func (s *store) txid() (id uint64) {
	s.look(func(tx *bolt.Tx) { id = uint64(tx.ID()) })
	return id
}
