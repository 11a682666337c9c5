package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel/ns"
)

// ifname is the pods' interface.
const ifname = "eth0"

// pod is a network namespace as a runtime makes it: bound to a path.
type pod struct{ ref ns.Ref }

// pods are those of a run. They are made when they are first asked for and
// used again, for making one takes as long as attaching it.
type pods struct{ all []*pod }

// first returns n pods, none of which has an interface.
func (ps *pods) first(n int) ([]*pod, error) {
	if missing := n - len(ps.all); missing > 0 {
		numbers := make([]int, missing)
		for i := range numbers {
			numbers[i] = len(ps.all) + i
		}
		made := make([]*pod, n)
		copy(made, ps.all)
		_, _, err := together(4, numbers, func(i int) (time.Duration, error) {
			p, err := makePod(i)
			made[i] = p
			return 0, err
		})
		if err != nil {
			return nil, err
		}
		ps.all = made
	}
	return ps.all[:n], nil
}

// close lets the namespaces go. Their paths lie in the run's own mount
// namespace, which ends with it; the kernel cleans up on its own time.
func (ps *pods) close() {
	for _, p := range ps.all {
		unix.Unmount(p.ref.Path, unix.MNT_DETACH)
	}
}

// makePod is `ip netns add benchN`.
func makePod(number int) (*pod, error) {
	path := filepath.Join("/run/netns", "bench"+strconv.Itoa(number))
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	f.Close()
	home, err := ns.Self()
	if err != nil {
		return nil, err
	}
	defer home.Close()
	err = home.Do(func() error { // its thread goes home again, or ends
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		return unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, "")
	})
	if err != nil {
		return nil, fmt.Errorf("making network namespace %s: %w", path, err)
	}
	n, err := ns.Open(path)
	if err != nil {
		return nil, err
	}
	defer n.Close()
	return &pod{n.Ref()}, nil
}

// empty reports whether the pod's interface is gone.
func (p *pod) empty() (gone bool, err error) {
	n, err := p.ref.Open()
	if err != nil {
		return false, err
	}
	defer n.Close()
	err = n.Do(func() error {
		_, err := net.InterfaceByName(ifname)
		gone = err != nil
		return nil
	})
	return gone, err
}

// settle waits until pods have no interface, and until the kernel has finished
// with what was deleted: a change of a link waits for the lock that a deletion
// under way holds.
func settle(ps []*pod) error {
	end := time.Now().Add(opTimeout)
	for _, p := range ps {
		for {
			gone, err := p.empty()
			if err != nil {
				return err
			}
			if gone {
				break
			}
			if time.Now().After(end) {
				return errors.New(ifname + " is still in " + p.ref.Path + " long after DEL")
			}
			time.Sleep(time.Millisecond)
		}
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo) // `ip link set lo up`
}
