package conform

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"

	"github.com/berth-net/berth/conform/oracle"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// netnsDir is where runtimes keep the paths of pods' network namespaces.
const netnsDir = "/run/netns"

// Pod is a network namespace with a path, as a runtime makes one for a pod.
type Pod struct {
	Path string
	fd   int
}

// Do runs a function in the pod's network namespace.
func (p *Pod) Do(f func() error) error { return inside(p.fd, f) }

// Pod makes a network namespace with a path.
func (n *Node) Pod() (*Pod, error) {
	fd, err := newNetns()
	if err != nil {
		return nil, err
	}
	if born := n.suite.born; born != nil {
		if err := inside(fd, born); err != nil {
			return nil, errors.Join(err, unix.Close(fd))
		}
	}
	p := &Pod{fd: fd, Path: filepath.Join(netnsDir, fmt.Sprintf("pod-%d", podNumber.Add(1)))}
	if err := os.WriteFile(p.Path, nil, 0o400); err != nil {
		return nil, err
	}
	// mount --bind /proc/self/fd/N /run/netns/pod-N
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", fd), p.Path, "", unix.MS_BIND, ""); err != nil {
		return nil, fmt.Errorf("giving a network namespace a path: %w", err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pods = append(n.pods, p)
	return p, nil
}

var podNumber atomic.Int64

// Remove removes a pod's path and closes its descriptor. The kernel ends a network namespace when
// nothing refers to the namespace and its last process has ended.
func (p *Pod) Remove() error {
	if p.fd < 0 {
		return nil
	}
	fd := p.fd
	p.fd = -1
	return errors.Join(unix.Unmount(p.Path, unix.MNT_DETACH), os.Remove(p.Path), unix.Close(fd))
}

// links returns the names of the pod's links.
func (p *Pod) links() (names []string, err error) {
	err = p.Do(func() error {
		all, err := oracle.List(netlink.LinkList)
		for _, l := range all {
			names = append(names, l.Attrs().Name)
		}
		return err
	})
	return names, err
}

// newNetns makes a network namespace without any link but the kernel's own, which are down: lo, and perhaps those of tunnels.
func newNetns() (fd int, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		if err = unix.Unshare(unix.CLONE_NEWNET); err == nil {
			fd, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		}
	}()
	if <-done; err != nil {
		return -1, fmt.Errorf("making a network namespace: %w", err)
	}
	return fd, nil
}

// inside runs a function on a thread in a network namespace.
func inside(fd int, f func() error) (err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		if err = unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
			err = fmt.Errorf("entering a network namespace: %w", err)
			return
		}
		err = f()
	}()
	<-done
	return err
}
