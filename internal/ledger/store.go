package ledger

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"strings"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/hold"
)

// store is the ledger's file. Only the writer uses it.
type store struct {
	db       *bolt.DB
	boltFile *os.File // bbolt's own
	file     *os.File // another descriptor of the file, to grow it
	head     head     // as it is in the file
	room     room
	pruning  pruning
	failed   error // not nil: what is on the disk is not known, nothing is written any more
	stuck    bool  // bbolt cannot be closed: it was not opened, or has panicked with its locks held
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
func openStore(path string, kinds hold.Kinds) (*store, state, error) {
	f, err := openFile(path)
	if err != nil {
		return nil, state{}, err
	}
	head, state, err := load(f, path, kinds)
	if err != nil {
		f.Close()
		return nil, state, err
	}
	s := &store{file: f, head: *head}
	if err := s.openBolt(path); err != nil {
		s.stuck = true
		return nil, state, errors.Join(err, s.close())
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
		s.boltFile.Close() // or the lock on the file would stay
		return s.file.Close()
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
	next = head{Schema: Schema, Seq: uint64(tx.ID()), Epoch: b.epoch, Sums: map[string]*sum{}}
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

// writeBatch puts what a batch comes to into the buckets, in the order of keys.
func writeBatch(tx *bolt.Tx, next *head, b *batch) error {
	owners, releasing := into(tx, next, bucketOwners), into(tx, next, bucketReleasing)
	for _, id := range slices.Sorted(maps.Keys(b.owners.over)) {
		slot := b.owners.over[id]
		before := b.owners.base[id]
		wasReleasing := before != nil && !before.owner.Wanted()
		isReleasing := slot.ok && !slot.val.owner.Wanted()
		if slot.ok && slot.val.json != nil {
			owners.put(string(id), slot.val.json)
		} else if !slot.ok && before != nil {
			owners.drop(string(id))
		}
		if isReleasing && !wasReleasing {
			releasing.putJSON(string(id), releasingRecord{slot.val.owner.Releasing.UnixNano()})
		} else if wasReleasing && !isReleasing {
			releasing.drop(string(id))
		}
	}
	rests := into(tx, next, bucketRests)
	for _, n := range slices.SortedFunc(maps.Keys(b.rests.over), compareNames) {
		if slot := b.rests.over[n]; slot.ok {
			rests.putJSON(keyOf(n), restRecord{slot.val.Freed.UnixNano(), slot.val.Until.UnixNano()})
		} else if _, ok := b.rests.base[n]; ok {
			rests.drop(keyOf(n))
		}
	}
	tombs := into(tx, next, bucketTombstones)
	for _, key := range slices.Sorted(maps.Keys(b.tombs.over)) {
		if slot := b.tombs.over[key]; slot.ok {
			tombs.putJSON(key, tombRecord{slot.val.Boot, slot.val.Started, slot.val.Until})
		} else if _, ok := b.tombs.base[key]; ok {
			tombs.drop(key)
		}
	}
	return cmp.Or(owners.err, releasing.err, rests.err, tombs.err, putHead(tx, next))
}

// putHead writes the head.
func putHead(tx *bolt.Tx, h *head) error {
	body, err := json.Marshal(h)
	if err != nil {
		return fmt.Errorf("encoding head: %w", err)
	}
	return tx.Bucket([]byte(bucketMeta)).Put(headKey, seal(bucketMeta, headKey, body))
}

// writer writes records of one bucket and keeps its sum. The first error stays.
type writer struct {
	name   string
	bucket *bolt.Bucket
	sum    *sum
	err    error
}

func into(tx *bolt.Tx, h *head, bucket string) *writer {
	return &writer{name: bucket, bucket: tx.Bucket([]byte(bucket)), sum: h.Sums[bucket]}
}

func (w *writer) put(key string, body []byte) {
	if w.err != nil {
		return
	}
	if old := w.bucket.Get([]byte(key)); old != nil {
		w.sum.sub(old)
	}
	rec := seal(w.name, []byte(key), body)
	w.sum.add(rec)
	w.err = w.bucket.Put([]byte(key), rec)
}

func (w *writer) putJSON(key string, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		w.err = cmp.Or(w.err, err)
		return
	}
	w.put(key, body)
}

func (w *writer) drop(key string) {
	if w.err != nil {
		return
	}
	old := w.bucket.Get([]byte(key))
	if old == nil {
		w.err = fmt.Errorf("record %.40q of bucket %s is not in the file", key, w.name)
		return
	}
	w.sum.sub(old)
	w.err = w.bucket.Delete([]byte(key))
}

// keyOf is the key of a name's rest; nameOf turns it back.
func keyOf(n hold.Name) string { return n.Space + "\x00" + n.Name }

func nameOf(key string) (hold.Name, bool) {
	space, name, ok := strings.Cut(key, "\x00")
	return hold.Name{Space: space, Name: name}, ok && space != "" && name != ""
}
