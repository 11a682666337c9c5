package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// lockPause is how long an install waits before it tries again to lock the state folder.
const lockPause = 50 * time.Millisecond

// alone calls do while no other install or uninstall of this root runs: two at once would each write a
// record that lacks what the other did. First alone removes the files that a killed install left
// half-written.
func (a *app) alone(ctx context.Context, do func() error) error {
	for {
		if err := os.MkdirAll(a.dir().State(), 0o700); err != nil { // as the agent makes it
			return err
		}
		lock, err := lockFolder(ctx, a.dir().State())
		if errors.Is(err, fs.ErrNotExist) { // an uninstall that had the lock has removed the folder
			continue
		}
		return a.locked(lock, err, do)
	}
}

// aloneIfInstalled is alone for commands that make no state folder: without a state folder, nothing
// is installed.
func (a *app) aloneIfInstalled(ctx context.Context, do func() error) error {
	lock, err := lockFolder(ctx, a.dir().State())
	if errors.Is(err, fs.ErrNotExist) {
		return do()
	}
	return a.locked(lock, err, do)
}

// locked calls do with the lock that lockFolder has returned.
func (a *app) locked(lock *os.File, err error, do func() error) error {
	if err != nil {
		return fmt.Errorf("waiting for another install or uninstall: %w", err)
	}
	defer lock.Close()
	defer os.Remove(a.dir().State()) // unless something is in it
	if rec, err := a.record(); err == nil {
		rec.sweep()
	}
	return do()
}

// lockFolder locks a folder. After the wait it checks that the path still leads to the locked
// folder: the lock's former holder may have removed the folder, and another process may have made
// it again.
func lockFolder(ctx context.Context, path string) (*os.File, error) {
	for {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil && isStill(f, path) {
			return f, nil
		}
		f.Close()
		if err != nil && err != unix.EWOULDBLOCK && err != unix.EINTR {
			return nil, fmt.Errorf("locking %s: %w", path, err)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%s is locked: %w", path, ctx.Err())
		case <-time.After(lockPause):
		}
	}
}

// isStill reports whether a path leads to an open file.
func isStill(f *os.File, path string) bool {
	was, err := f.Stat()
	now, err2 := os.Stat(path)
	return err == nil && err2 == nil && os.SameFile(was, now)
}

// tmp is how the names of this root's half-written files end.
func (a *app) tmp() string { return "." + sum([]byte(a.root))[:8] + ".tmp" }

// sweep removes the half-written files of this root from the folders of the record's files, and puts
// back a program that a killed uninstall had set aside: a pod may need the program by now.
func (rec *record) sweep() {
	dirs := map[string]bool{rec.app.dir().State(): true}
	for _, f := range rec.Files {
		dirs[filepath.Dir(f.Path)] = true
	}
	for dir := range dirs {
		entries, _ := os.ReadDir(dir) // what cannot be read now is removed the next time
		for _, e := range entries {
			if !strings.HasPrefix(e.Name(), ".") || !strings.HasSuffix(e.Name(), rec.app.tmp()) {
				continue
			}
			if !rec.app.putBack(dir, e.Name()) {
				_ = os.Remove(filepath.Join(dir, e.Name()))
			}
		}
	}
}
