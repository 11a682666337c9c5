package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// ending is how long uninstall waits for plugins that still run. endingPause is how long uninstall
// waits between two looks at these plugins.
const (
	ending      = 30 * time.Second
	endingPause = 10 * time.Millisecond
)

// aside is a program that is away from its path, and not removed yet. So no new ADD begins, and
// uninstall can put the program back if an ADD that had begun attaches a pod.
type aside struct {
	path, hidden string
	info         os.FileInfo
}

// setAside takes a program away from its path. settle removes it, or puts it back.
func (u *undoing) setAside(path string) (action string, err error) {
	s := aside{path: path, hidden: filepath.Join(filepath.Dir(path), u.app.hidden(filepath.Base(path)))}
	if s.info, err = os.Lstat(path); err != nil {
		return "", err
	}
	if err := os.Rename(s.path, s.hidden); err != nil {
		return "", err
	}
	u.away = append(u.away, s)
	return "removed", nil
}

// hidden returns the name of a program that is set aside. No half-written file has such a name.
func (a *app) hidden(program string) string { return "." + program + a.tmp() }

// putBack puts a program back that a killed uninstall had set aside, unless another program is in its
// place by now. putBack reports false if the file is of no more use, and the caller has to remove it.
func (a *app) putBack(dir, name string) bool {
	for _, program := range []string{plugin, loopback} {
		if name != a.hidden(program) {
			continue
		}
		err := unix.Renameat2(unix.AT_FDCWD, filepath.Join(dir, name), unix.AT_FDCWD, filepath.Join(dir, program), unix.RENAME_NOREPLACE)
		if err == nil {
			_ = syncDir(dir) // as far as the disk lets it: the program is there now
		}
		return err != unix.EEXIST
	}
	return false
}

// settle removes the programs that are set aside or, if a pod needs them (why), puts them back.
func (u *undoing) settle(why string) (err error) {
	for _, s := range u.away {
		var e error
		if why == "" {
			_, e = unplace(s.hidden)
		} else if e = os.Rename(s.hidden, s.path); e == nil {
			e = syncDir(filepath.Dir(s.path))
		}
		err = errors.Join(err, e)
	}
	u.away = nil
	return err
}

// late waits until no plugin that is set aside runs any more, and says why a pod needs the plugins
// after all; "": none does.
func (u *undoing) late(ctx context.Context) string {
	for deadline := time.Now().Add(ending); ; {
		pid := u.running()
		if pid == "" {
			return u.needed()
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return fmt.Sprintf("process %s still executes it", pid)
		}
		time.Sleep(endingPause)
	}
}

// running returns a process that executes a program that is set aside; "" if there is none.
func (u *undoing) running() string {
	exes, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, exe := range exes {
		info, err := os.Stat(exe) // of the program itself, wherever it is by now
		if err == nil && slices.ContainsFunc(u.away, func(s aside) bool { return os.SameFile(s.info, info) }) {
			return filepath.Base(filepath.Dir(exe))
		}
	}
	return ""
}
