package conform

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/conform/oracle"
)

// netnsDir is where runtimes keep the paths of pods' network namespaces.
const netnsDir = "/run/netns"

// Uplink is the node's interface to the world, which a list may name as a
// "master", and Spare one that may be given away. Behind each is somebody who
// answers at Gateway4 and Gateway6.
const (
	Uplink   = "eth0"
	Spare    = "eth1"
	NodeIP4  = "192.0.2.1"
	Gateway4 = "192.0.2.254"
	Gateway6 = "2001:db8:ffff::fe"
)

// Node is a network namespace for the host's, with state folders.
type Node struct {
	suite *suite
	fd    int // the network namespace
	world int // the one behind the uplinks
	store *store

	mu   sync.Mutex
	pods []*Pod
}

// Pod is a network namespace with a path, as a runtime makes it.
type Pod struct {
	Path string
	fd   int
}

// newNode makes a node and starts the daemon on it, if there is one.
func (s *suite) newNode(ctx context.Context) (*Node, error) {
	store, err := openStore(s.StateDirs)
	if err != nil {
		return nil, err
	}
	n := &Node{suite: s, fd: -1, world: -1, store: store}
	if err := n.boot(ctx); err != nil {
		return nil, errors.Join(err, n.close(ctx))
	}
	return n, nil
}

// boot makes the network namespaces of a node and starts its daemon.
func (n *Node) boot(ctx context.Context) error {
	var err error
	if n.world, err = newNetns(); err != nil {
		return err
	}
	if n.fd, err = newNetns(); err != nil {
		return err
	}
	if err := n.furnish(); err != nil {
		return err
	}
	return n.Hook(ctx, "start")
}

// furnish gives a node its loopback and its uplinks.
func (n *Node) furnish() error {
	err := n.Do(func() error {
		for i, name := range []string{Uplink, Spare} {
			peer := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "w" + name, PeerNamespace: netlink.NsFd(n.world)}
			if err := netlink.LinkAdd(peer); err != nil {
				return fmt.Errorf("making %s: %w", name, err)
			}
			if i == 0 {
				if err := configure(name, NodeIP4+"/24", "2001:db8:ffff::1/64"); err != nil {
					return err
				}
			} else if err := configure(name); err != nil {
				return err
			}
		}
		return configure("lo")
	})
	if err != nil {
		return err
	}
	err = inside(n.world, func() error {
		if err := configure("w" + Spare); err != nil {
			return err
		}
		return configure("w"+Uplink, Gateway4+"/24", Gateway6+"/64")
	})
	if err != nil {
		return err
	}
	return n.Do(func() error {
		for _, gw := range []string{Gateway4, Gateway6} {
			if err := netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP(gw)}); err != nil {
				return fmt.Errorf("routing to the world: %w", err)
			}
		}
		return nil
	})
}

// configure is `ip link set NAME up` and `ip address add ... nodad`.
func configure(name string, addrs ...string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("looking for %s: %w", name, err)
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return fmt.Errorf("setting %s up: %w", name, err)
	}
	for _, text := range addrs {
		a, err := netlink.ParseAddr(text)
		if err != nil {
			return err
		}
		a.Flags = unix.IFA_F_NODAD
		if err := netlink.AddrAdd(l, a); err != nil {
			return fmt.Errorf("giving %s %s: %w", name, text, err)
		}
	}
	return nil
}

// Do runs a function in the node's network namespace.
func (n *Node) Do(f func() error) error { return inside(n.fd, f) }

// Do runs a function in the pod's network namespace.
func (p *Pod) Do(f func() error) error { return inside(p.fd, f) }

// Pod makes a network namespace with a path.
func (n *Node) Pod() (*Pod, error) {
	fd, err := newNetns()
	if err != nil {
		return nil, err
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

// Remove takes a pod's path away and lets go of it: with its last process a
// network namespace ends.
func (p *Pod) Remove() error {
	if p.fd < 0 {
		return nil
	}
	fd := p.fd
	p.fd = -1
	return errors.Join(unix.Unmount(p.Path, unix.MNT_DETACH), os.Remove(p.Path), unix.Close(fd))
}

// Look is what the oracle sees on the node: everything in its network namespace,
// the files in the state folders and which containers they mention, and the paths
// of namespaces that are no pod's.
func (n *Node) Look() (oracle.State, error) {
	var all oracle.State
	err := n.Do(func() error {
		seen, err := oracle.Look()
		all = seen
		return err
	})
	if err != nil {
		return all, err
	}
	for _, dir := range append([]string{netnsDir}, n.suite.StateDirs...) {
		files, err := oracle.Files(dir)
		if err != nil {
			return all, fmt.Errorf("looking into %s: %w", dir, err)
		}
		all = all.And(files.Below(dir))
	}
	for _, dir := range n.suite.StateDirs {
		mentions, err := oracle.Mentions(dir, anyID)
		if err != nil {
			return all, fmt.Errorf("reading in %s: %w", dir, err)
		}
		all = all.And(mentions)
	}
	mounts, err := oracle.Mounts()
	if err != nil {
		return all, err
	}
	all = all.And(mounts.But([]string{"mount " + netnsDir + "/"})) // which are files there
	return all.But(n.podFiles()), nil
}

// podFiles are the lines that pods of the suite make.
func (n *Node) podFiles() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var lines []string
	for _, p := range n.pods {
		lines = append(lines, "file "+p.Path+" ")
	}
	return lines
}

// Reboot is what a power failure does to a node: every process and network
// namespace is gone, and what is in /run; files elsewhere stay.
func (n *Node) Reboot(ctx context.Context) error {
	if err := n.powerOff(); err != nil {
		return err
	}
	if err := rebootRun(); err != nil {
		return err
	}
	if err := n.suite.anotherBoot(); err != nil {
		return err
	}
	return n.boot(ctx)
}

// powerOff ends processes and namespaces.
func (n *Node) powerOff() error {
	_ = unix.Kill(-1, unix.SIGKILL) // ESRCH: there is none
	var errs []error
	for _, p := range n.pods {
		errs = append(errs, p.Remove())
	}
	n.pods = nil
	for _, fd := range []*int{&n.fd, &n.world} {
		if *fd >= 0 {
			errs = append(errs, unix.Close(*fd))
			*fd = -1
		}
	}
	return errors.Join(errs...)
}

// close ends a node.
func (n *Node) close(ctx context.Context) error {
	err := n.Hook(ctx, "stop")
	return errors.Join(err, n.powerOff(), rebootRun(), n.store.close())
}

// hookTime is how long a hook may take.
const hookTime = 30 * time.Second

// Hook runs one of the hook programs on the node, if there is one of that name.
func (n *Node) Hook(ctx context.Context, name string) error {
	path := filepath.Join(n.suite.HookDir, name)
	if _, err := os.Stat(path); n.suite.HookDir == "" || err != nil || n.fd < 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, hookTime)
	defer cancel()
	return n.Do(func() error {
		cmd := exec.CommandContext(ctx, path)
		cmd.Env = append(os.Environ(), "CNI_PATH="+n.suite.BinDir)
		cmd.Dir = "/"
		out, err := os.CreateTemp("", "conform-hook-*") // a pipe would be held open by a daemon
		if err != nil {
			return err
		}
		defer os.Remove(out.Name())
		defer out.Close()
		cmd.Stdout, cmd.Stderr = out, out
		if err := cmd.Run(); err != nil {
			said, _ := os.ReadFile(out.Name())
			return fmt.Errorf("hook %s: %w: %s", path, err, short(said))
		}
		return nil
	})
}

// newNetns makes a network namespace without any link but lo, which is down.
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
