package ledger

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/root"
)

// aside is a file beside the ledger's file, whose place it is to take.
type aside struct {
	path string
	file file
	end  int64
	logFile
	buf []byte // the sectors of the batch that add writes; kept to be used again
}

// writeAside writes a snapshot into a new file, with room behind it, all durable. If the disk lacks
// room for more, `least` sectors of room must do. On an error writeAside leaves no file. If cancel
// is not nil, setting it ends writeAside with an error.
func writeAside(opts Options, c contents, least int, cancel *atomic.Bool) (*aside, error) {
	id := rand.Uint64()
	path := asidePath(opts.Path, id)
	f, err := opts.volume.open(path, os.O_CREATE|os.O_EXCL)
	if err != nil {
		return nil, err
	}
	a := &aside{path: path, file: f, logFile: logFile{fileHead: fileHead{id: id, seq: c.seq}, logEnd: logEnd{tail: sectorSize}}}
	if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
		err = a.fill(opts, c, least, cancel)
	}
	if err != nil {
		return nil, errors.Join(err, a.drop(opts.volume))
	}
	return a, nil
}

// drop removes the file, unless the file's name leads to somebody else's file by now.
func (a *aside) drop(vol volume) error {
	err := named(a.path, a.file)
	if err == nil {
		err = vol.remove(a.path)
	}
	return errors.Join(err, a.file.Close())
}

// asidePath returns where a file with an id is until it takes the place of a ledger.
func asidePath(path string, id uint64) string { return fmt.Sprintf("%s.new-%016x", path, id) }

// removeAsides removes the files that crashes have left at such places (asidePath). The caller has
// the ledger's lock, so that nobody else is writing such a file.
func removeAsides(opts Options) error {
	entries, err := os.ReadDir(filepath.Dir(opts.Path))
	if err != nil {
		return err
	}
	for _, e := range entries {
		digits, ok := strings.CutPrefix(e.Name(), filepath.Base(opts.Path)+".new-")
		id, err := strconv.ParseUint(digits, 16, 64)
		path := asidePath(opts.Path, id)
		if !ok || err != nil || filepath.Base(path) != e.Name() || !e.Type().IsRegular() || !isAside(path, id) {
			continue
		}
		if err := opts.volume.remove(path); err != nil {
			return err
		}
	}
	return nil
}

// isAside reports whether a file begins like a file with this id that writeAside makes: with a
// first sector of that id or, because the first sector is written last, with zeros. A file that
// begins otherwise is somebody else's.
func isAside(path string, id uint64) bool {
	f, err := root.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	first := make([]byte, sectorSize)
	n, err := io.ReadFull(f, first)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return false
	}
	if isZero(first[:n]) {
		return true
	}
	h, err := parseFileHead(first)
	return err == nil && hasMagic(first) && h.id == id
}

var errCancelled = errors.New("the ledger is being closed")

func (a *aside) fill(opts Options, c contents, least int, cancel *atomic.Bool) error {
	takes := int64(c.sectors()+least) * sectorSize
	if room, err := available(a.file); err == nil && room < takes {
		return fmt.Errorf("%w: %d bytes are free, and a new file takes %d", ErrFull, room, takes)
	}
	out := changes{}
	flush := func(least int) error {
		if out.err != nil || len(out.payload) < least {
			return out.err
		}
		if cancel != nil && cancel.Load() {
			return errCancelled
		}
		err := a.add(out.payload)
		out.payload = out.payload[:0]
		return err
	}
	out.put(bucketMeta, headKey, c.head)
	for _, e := range c.owners {
		record := e.owner
		record.Releasing, record.Earlier = time.Time{}, nil
		out.putJSON(bucketOwners, string(e.owner.ID), record)
		if !e.owner.Wanted() {
			out.putJSON(bucketReleasing, string(e.owner.ID), promiseOf(&e.owner))
		}
		if err := flush(snapshotBy); err != nil {
			return err
		}
	}
	for key, r := range c.rests.all() {
		out.putJSON(bucketRests, key, restRecord(r.span))
		if err := flush(snapshotBy); err != nil {
			return err
		}
	}
	for key, t := range c.tombs.all() {
		out.putJSON(bucketTombstones, key, tombRecord{t.boot, t.started, t.until})
		if err := flush(snapshotBy); err != nil {
			return err
		}
	}
	if err := flush(1); err != nil {
		return err
	}
	a.snap, a.snapshot = a.tail, a.batch
	log := int64(0)
	if len(c.owners)+c.rests.len() > 0 { // a new ledger may stay small
		log = opts.logFor(a.snap)
	}
	return a.makeRoom(log, c.exits(), least, cancel)
}

// exits returns how many sectors the deletions of the owners may take.
func (c *contents) exits() int {
	n := 0
	for _, e := range c.owners {
		n += exit(&e.owner)
	}
	return n
}

// makeRoom writes the zeros behind the snapshot: the reserve, and room for `log` bytes of log,
// after which the file is written anew. If the disk lacks that room, makeRoom leaves the log out;
// if the disk lacks room for the reserve, `least` sectors must do.
func (a *aside) makeRoom(log int64, exits, least int, cancel *atomic.Bool) error {
	must := a.tail + int64(least+1)*sectorSize
	whole := a.tail + int64(reserve(exits)+growBy)*sectorSize
	want := max(must, whole+log)
	if room, err := available(a.file); err == nil {
		for _, less := range []int64{whole, must} {
			if room < want-a.tail {
				want = max(must, less)
			}
		}
	}
	for a.end = a.tail; a.end < want; {
		if cancel != nil && cancel.Load() {
			return errCancelled
		}
		to := min(want, a.end+1<<20)
		if err := zero(a.file, a.end, to); err != nil {
			if isFull(err) && a.end >= must {
				return errors.Join(a.file.Truncate(a.end), a.file.Sync())
			}
			return err
		}
		a.end = to
	}
	return a.file.Sync()
}

// available returns how many bytes the file system of a file has room for.
func available(f file) (int64, error) {
	var s unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &s); err != nil {
		return 0, err
	}
	if s.Blocks == 0 {
		return 0, unix.ENOSYS // the file system does not say
	}
	return usable(&s, unix.Geteuid() == 0), nil
}

// usable returns how many bytes of a file system a user can write. Many file systems keep the
// last blocks for root. The log of an agent that is root grows into these blocks. So a file that is
// written anew has to count them, too: otherwise the log would go on growing until no block is
// left, although the ledger would take less room once its file is written anew.
func usable(s *unix.Statfs_t, root bool) int64 {
	if root {
		return int64(s.Bfree) * s.Bsize
	}
	return int64(s.Bavail) * s.Bsize
}

// catchUp adds the batches that were written since the snapshot, and makes sure that `left` sectors
// of zeros are behind these batches.
func (a *aside) catchUp(since [][]byte, left int) error {
	need := left + 1 // the last sector stays zero
	for _, payload := range since {
		need += sectors(len(payload))
	}
	if end := a.tail + int64(need)*sectorSize; end > a.end {
		if err := zero(a.file, a.end, end); err != nil {
			return err
		}
		a.end = end
	}
	for _, payload := range since {
		if err := a.add(payload); err != nil {
			return err
		}
	}
	return nil
}

// add adds a batch. The batch is durable when finish returns.
func (a *aside) add(payload []byte) error {
	chain := chainOn(a.chain, payload)
	a.buf = appendBatch(a.buf[:0], a.id, a.batch+1, chain, payload)
	if _, err := a.file.WriteAt(a.buf, a.tail); err != nil {
		return err
	}
	a.last = a.tail
	a.logEnd = logEnd{a.batch + 1, chain, a.tail + int64(len(a.buf))}
	return nil
}

// finish writes the first sector, and makes the file durable.
func (a *aside) finish() error {
	a.durable, a.buf = a.tail, nil
	if _, err := a.file.WriteAt(a.sector(), 0); err != nil {
		return err
	}
	return a.file.Sync()
}
