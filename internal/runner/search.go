package runner

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/patience"
	"github.com/berth-net/berth/internal/runner/wire"
)

// answering is how long the file system of a folder of plugins may take to answer.
const answering = 2 * time.Second

// idleThreads is how many threads wait for the next search.
const idleThreads = 2

// search looks for plugins, as they are in a mount namespace. A folder that does not answer keeps nobody
// but those who need it; and since nobody starts a plugin that was not found, it keeps the thread that
// starts plugins from nothing, either.
type search struct {
	mount string
	calls patience.Calls
	idle  chan *thread
}

func newSearch(mount string) *search {
	return &search{mount: mount, idle: make(chan *thread, idleThreads)}
}

// find returns the path of a plugin: the first regular file of its name in the folders.
func (s *search) find(name string, folders []string) (string, error) {
	for _, folder := range folders {
		path := filepath.Join(folder, name)
		info, err := patience.Call(&s.calls, folder, answering, func() (fs.FileInfo, error) { return s.stat(path) }, nil)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return "", cni.Errorf(cni.CodeIO, wire.MsgUnrunable, "looking for %s in %s: %v", name, folder, err)
		case !info.Mode().IsRegular():
		case info.Mode()&0o111 == 0:
			return "", cni.Errorf(cni.CodeIO, wire.MsgUnrunable, "%s in %s is not executable", name, folder)
		default:
			return path, nil
		}
	}
	return "", cni.Errorf(cni.CodeIO, wire.MsgAbsent, "%s is not in %s", name, strings.Join(folders, ", "))
}

// stat is os.Stat in the namespace. A thread that hangs never comes back to the others.
func (s *search) stat(path string) (info fs.FileInfo, err error) {
	if s.mount == "" {
		return os.Stat(path)
	}
	var t *thread
	select {
	case t = <-s.idle:
	default:
		if t, err = newThread(s.mount); err != nil {
			return nil, err
		}
	}
	t.do(func() { info, err = os.Stat(path) })
	select {
	case s.idle <- t:
	default:
		t.end()
	}
	return info, err
}

// close ends the threads that are idle.
func (s *search) close() {
	for {
		select {
		case t := <-s.idle:
			t.end()
		default:
			return
		}
	}
}
