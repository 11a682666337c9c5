package deletions

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/boottime"
	"github.com/berth-net/berth/internal/root"
)

// Queue is the agent's end of a root's queue. Several goroutines can use it. Each call opens
// the folder anew, and makes it if it is gone, so that the queue finds what the plugin writes
// after that.
type Queue struct {
	dir    root.Dir
	now    func() time.Time
	clock  *boottime.Clock // tells when somebody sets the clock of now
	seen   lastLook
	refill sync.Mutex // one Refill at a time: two would make the same files
	once   sync.Once
	closed chan struct{} // Close closes it

	followed atomic.Bool // the kernel tells of what comes into the folder
}

// Entry is a deletion that waits.
type Entry struct {
	Name    string // of its file, for Remove
	Record  Record
	Written time.Time
}

// Open opens a root's queue, and makes its folder if it is missing.
func Open(dir root.Dir) (*Queue, error) {
	f, err := openFolder(dir)
	if err != nil {
		return nil, err
	}
	f.close()
	q := &Queue{dir: dir, now: time.Now, closed: make(chan struct{})}
	q.clock = boottime.NewClock(func() time.Time { return q.now() }, nil)
	return q, nil
}

// Pending returns the deletions that wait, oldest first: in the order of the boots in which
// they began, and by Started within a boot. Pending sets files aside that are no deletions. After
// an error the entries are right as far as they go, and all other files are still in the queue.
func (q *Queue) Pending() ([]Entry, error) { return q.pending("") }

// PendingOf is Pending for one key. If nothing has changed in the folder, it costs a few
// microseconds, however many deletions of other keys wait.
func (q *Queue) PendingOf(network, container, ifname string) ([]Entry, error) {
	entries, err := q.pending(keyName(network, container, ifname))
	return slices.DeleteFunc(entries, func(e Entry) bool {
		return e.Record.Network != network || e.Record.Container != container || e.Record.Ifname != ifname
	}), err
}

// Waiting returns how many deletions seem to wait, by the names in the folder.
func (q *Queue) Waiting() (int, error) {
	f, err := openFolder(q.dir)
	if err != nil {
		return 0, err
	}
	defer f.close()
	names, err := q.look(f)
	return len(names), err
}

// pending returns the deletions whose names begin with prefix.
func (q *Queue) pending(prefix string) ([]Entry, error) {
	f, err := openFolder(q.dir)
	if err != nil {
		return nil, err
	}
	defer f.close()
	names, err := q.look(f)
	if err != nil {
		return nil, err
	}
	var entries []Entry
	var errs []error
	for _, name := range names {
		if !strings.HasPrefix(name, prefix) {
			continue
		}
		e, err := f.read(name)
		switch {
		case err == nil:
			entries = append(entries, e)
		case errors.Is(err, unix.ENOENT): // another goroutine has done the deletion
		case passing(err):
			errs = append(errs, fmt.Errorf("reading the deletion %s: %w", name, err))
		default:
			errs = append(errs, f.setAside(name))
		}
	}
	sortEntries(entries)
	return entries, errors.Join(errs...)
}

// sortEntries sorts entries by boot, and by Started within a boot. The boots are in the order
// in which their first deletions were written.
func sortEntries(entries []Entry) {
	first := make(map[string]time.Time)
	for _, e := range entries {
		if t, ok := first[e.Record.Boot]; !ok || e.Written.Before(t) {
			first[e.Record.Boot] = e.Written
		}
	}
	slices.SortFunc(entries, func(a, b Entry) int {
		return cmp.Or(
			first[a.Record.Boot].Compare(first[b.Record.Boot]),
			cmp.Compare(a.Record.Boot, b.Record.Boot),
			cmp.Compare(a.Record.Started, b.Record.Started),
			cmp.Compare(a.Name, b.Name),
		)
	})
}

// Remove removes deletions that are done, durably. It is no error if a deletion is not there.
func (q *Queue) Remove(names ...string) error {
	f, err := openFolder(q.dir)
	if err != nil {
		return err
	}
	defer f.close()
	var errs []error
	for _, name := range names {
		if !isName(name) {
			errs = append(errs, fmt.Errorf("removing %q: not the name of a deletion", name))
			continue
		}
		if err := unix.Unlinkat(f.fd, name, 0); err != nil && err != unix.ENOENT {
			errs = append(errs, fmt.Errorf("removing the deletion %s: %w", name, err))
		}
	}
	if err := fsync(f.fd); err != nil {
		errs = append(errs, fmt.Errorf("syncing %s: %w", f.path, err))
	}
	return errors.Join(errs...)
}
