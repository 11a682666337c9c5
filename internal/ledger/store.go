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
	head     head     // the head in the file
	opened   opening
	room     room
	pruning  pruning
	failed   error // not nil: nobody knows what the file contains, and nothing is written any more
	stuck    bool  // bbolt cannot be closed, because it has panicked while it held its locks
}

// boltOptions returns the options to open a file with bbolt. Its bytes were checked
// (pages.go), and its descriptor and lock are the store's.
func boltOptions(open func(string, int, os.FileMode) (*os.File, error)) *bolt.Options {
	return &bolt.Options{
		OpenFile: open,
		PageSize: pageSize,
		// Without a free list in the file bbolt finds the free pages at open, by walking
		// the file. With one, every commit would write all of it, and a changed byte in it
		// could make bbolt use a page that is in use.
		NoFreelistSync: true,
		FreelistType:   bolt.FreelistMapType, // constant time, however many pages are free
		// bbolt must not grow the file, because it would do so by truncate and leave a
		// hole. space.go grows it, by fallocate and fsync.
		NoGrowSync: true,
		// This costs only address space. bbolt's map of the file doubles as it grows, and
		// with this size it need not move for up to some 20,000 owners.
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
		unix.Flock(int(f.Fd()), unix.LOCK_UN) // else a map that bbolt left behind would keep the lock
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

// openBolt opens bbolt on a duplicate of the open file's descriptor. The lock belongs to
// both, so that it is never released in between.
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

// recoverAs turns a panic of bbolt, or a fault in its map of the file (because the file was
// truncated or the disk cannot be read), into an error.
func recoverAs(err *error, onFault bool) {
	debug.SetPanicOnFault(onFault)
	if r := recover(); r != nil {
		*err = fmt.Errorf("bbolt panicked: %v", r)
	}
}

func (s *store) close() error {
	if s.stuck {
		// bbolt's map of the file stays, and would keep the lock otherwise.
		err := unix.Flock(int(s.file.Fd()), unix.LOCK_UN)
		return errors.Join(err, s.boltFile.Close(), s.file.Close())
	}
	return errors.Join(s.db.Close(), s.file.Close())
}

// write makes a batch durable. After an error the file is as before or, if that is not
// certain, the store has failed for good.
func (s *store) write(b *batch) error {
	next, err := s.transact(b)
	if err == nil {
		s.head = next
		s.takeStock()
		return nil
	}
	if full := (*fs.PathError)(nil); errors.As(err, &full) && isFull(full.Err) && !s.stuck && s.txid() == s.head.Seq {
		// A page could not be written, and nothing in the file refers to it.
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

// look gives see a bbolt transaction for reading. It reads no page of the file itself.
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
