package deletions

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
)

// watching watches a queue. The function that it returns fails the test unless the watch tells
// soon, and the queue then has the given number of deletions.
func watching(t *testing.T, q *Queue, watch func(changed func()) error) (soon func(n int)) {
	t.Helper()
	told := make(chan struct{}, 1)
	err := watch(func() {
		select {
		case told <- struct{}{}:
		default:
		}
	})
	must(t, err)
	return func(n int) {
		t.Helper()
		nettest.Eventually(t, "the watch tells of the deletions", func() bool {
			select {
			case <-told:
				return len(mustPending(t, q)) == n
			default:
				return false
			}
		})
	}
}

func TestWatch(t *testing.T) {
	dir := root.Dir(t.TempDir())
	q := open(t, dir)
	soon := watching(t, q, q.Watch)
	for i := range 3 {
		mustWrite(t, dir, numbered(i))
		soon(i + 1)
	}
	must(t, q.Close())
	must(t, q.Close())
}

// The watch goes on if somebody removes the folder, or moves it away.
func TestWatchFolderGone(t *testing.T) {
	for name, remove := range map[string]func(path string) error{
		"removed": os.RemoveAll,
		"moved":   func(path string) error { return os.Rename(path, path+"-moved") },
		"replaced": func(path string) error {
			if err := os.Rename(path, path+"-moved"); err != nil {
				return err
			}
			if err := os.Mkdir(path, 0o700); !errors.Is(err, os.ErrExist) { // or the watch was faster
				return err
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := root.Dir(t.TempDir())
			q := open(t, dir)
			soon := watching(t, q, q.Watch)
			mustWrite(t, dir, example)
			soon(1)
			must(t, remove(Path(dir)))
			soon(0)
			mustWrite(t, dir, example)
			soon(1)
			mustWrite(t, dir, example)
			soon(2)
		})
	}
}

// If there is no inotify instance to be had at first, the watch tries again.
func TestWatchWithoutInotify(t *testing.T) {
	dir := root.Dir(t.TempDir())
	q := open(t, dir)
	mustWrite(t, dir, example)
	soon := watching(t, q, func(changed func()) error {
		go q.keepWatching(nil, changed)
		return nil
	})
	if q.Watched() {
		t.Error("without an inotify instance the kernel tells of files at once")
	}
	soon(1) // by the look
	mustWrite(t, dir, example)
	soon(2)
	nettest.Eventually(t, "the kernel to tell of files at once", q.Watched)
}

// The queue makes a folder that is missing, but never a root.
func TestWatchNoFolder(t *testing.T) {
	q := open(t, root.Dir(t.TempDir()))
	must(t, os.RemoveAll(filepath.Dir(Path(q.dir))))
	soon := watching(t, q, q.Watch)
	mustWrite(t, q.dir, example)
	soon(1)

	gone := open(t, root.Dir(t.TempDir()))
	must(t, os.RemoveAll(string(gone.dir)))
	if err := gone.Watch(func() {}); err == nil {
		t.Error("a root that is gone is watched")
	}
}
