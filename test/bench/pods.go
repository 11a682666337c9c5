package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel/ns"
)

// ifname is the name of the pods' interface.
const ifname = "eth0"

// pod is a network namespace as a runtime makes it: bound to a path.
type pod struct{ ref ns.Ref }

// pods are the pods of a stage.
type pods struct {
	kept []*pod // used again and again
	used []*pod // used once
}

// made numbers the pods of a run.
var made atomic.Int64

// first returns n pods without an interface, the same each time.
func (ps *pods) first(n int) ([]*pod, error) {
	more, err := makePods(n - len(ps.kept))
	ps.kept = append(ps.kept, more...)
	if err != nil {
		return nil, err
	}
	return ps.kept[:n], nil
}

// fresh returns n pods that nobody has used, like those that a runtime gives to a plugin.
// The first look at /proc/sys/net in a namespace takes longer the more namespaces there
// are; a pod that was used before would not show that.
func (ps *pods) fresh(n int) ([]*pod, error) {
	more, err := makePods(n)
	ps.used = append(ps.used, more...)
	return more, err
}

// close deletes all pods, and waits until the kernel has cleaned up after them. The kernel
// cleans up in the background, and takes locks that the next stage measures.
func (ps *pods) close() error {
	all := slices.Concat(ps.kept, ps.used)
	*ps = pods{}
	if len(all) == 0 {
		return nil
	}
	last, err := linkedPod()
	for _, p := range all {
		p.remove()
	}
	if err != nil {
		return err
	}
	last.remove() // the kernel cleans up last what is deleted last
	for end := time.Now().Add(cleaning); ; time.Sleep(10 * time.Millisecond) {
		_, err := netlink.LinkByName(lastLink)
		switch {
		case errors.As(err, new(netlink.LinkNotFoundError)):
			return nil
		case err != nil:
			return err
		case time.Now().After(end):
			return fmt.Errorf("the kernel has not cleaned up after %d network namespaces within %s", len(all), cleaning)
		}
	}
}

const (
	// cleaning is how long the kernel may take to clean up after a stage's pods.
	cleaning = 5 * time.Minute
	// lastLink is the node's end of a linkedPod's link.
	lastLink = "last0"
)

// linkedPod makes a pod with a link to the node. The link disappears when the kernel cleans
// up after the pod.
func linkedPod() (*pod, error) {
	p, err := makePod(int(made.Add(1)))
	if err != nil {
		return nil, err
	}
	n, err := p.ref.Open()
	if err != nil {
		return nil, err
	}
	defer n.Close()
	// ip link add last0 type veth peer name eth0 netns POD
	return p, netlink.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: lastLink}, PeerName: ifname, PeerNamespace: netlink.NsFd(n.Fd()),
	})
}

func (p *pod) remove() {
	unix.Unmount(p.ref.Path, unix.MNT_DETACH)
	os.Remove(p.ref.Path)
}

// makePods makes n pods, several at once. Also with an error, it returns the pods that it
// has made.
func makePods(n int) ([]*pod, error) {
	if n <= 0 {
		return nil, nil
	}
	all := make([]*pod, n)
	numbers := make([]int, n)
	for i := range numbers {
		numbers[i] = i
	}
	_, _, err := together(4, numbers, func(i int) (time.Duration, error) {
		p, err := makePod(int(made.Add(1)))
		all[i] = p
		return 0, err
	})
	return slices.DeleteFunc(all, func(p *pod) bool { return p == nil }), err
}

// makePod is `ip netns add benchN`.
func makePod(number int) (*pod, error) {
	path := filepath.Join("/run/netns", "bench"+strconv.Itoa(number))
	n, err := ns.New(path)
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

// settle waits until pods have no interface, and until the kernel has finished deleting: settle
// changes a link, and the change waits for the lock that a deletion holds.
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
