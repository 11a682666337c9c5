package node

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/berth-net/berth/internal/boottime"
	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/kernel/conntrack"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds"
	"github.com/berth-net/berth/internal/kinds/link"
)

// Open opens the network namespace that this program is in.
func Open() (*Node, error) {
	here, err := ns.Self()
	if err != nil {
		return nil, fmt.Errorf("looking at the node's network namespace: %w", err)
	}
	n, err := open(here)
	if err != nil {
		return nil, errors.Join(err, here.Close())
	}
	return n, nil
}

func open(here *ns.Netns) (*Node, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("reading the boot id: %w", err)
	}
	conn, err := rtnl.Open(here)
	if err != nil {
		return nil, fmt.Errorf("opening netlink: %w", err)
	}
	tracked, err := conntrack.Open(here)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	self := here.Ref()
	return &Node{
		Place: daemon.Place{
			Netns: self, Boot: strings.TrimSpace(string(boot)), Wall: time.Now, Boottime: boottime.Now,
			Sole: daemon.LockInstance(self),
		},
		Here: here, Conn: conn, Tracked: tracked,
		Equip:    func(n *Node, h Hooks) error { n.Doors = kinds.Open(here, conn, n.Marks, h); return nil },
		Noticed:  func(watch func(func()) error, changed func()) error { return watch(changed) },
		Identify: identify, Occupied: occupied, Ends: link.FindEnds,
		Sysctl: ns.Sysctl, SetSysctl: ns.SetSysctl,
		Shut: func() error { return errors.Join(conn.Close(), here.Close()) },
	}, nil
}

func identify(ref ns.Ref) (ns.Ref, error) {
	n, err := ref.Open()
	if err != nil {
		return ns.Ref{}, err
	}
	defer n.Close()
	return n.Ref(), nil
}

// occupied reports whether a pod has an interface of a name, made by Berth or not.
//
//	ip -n POD link show NAME
func occupied(pod ns.Ref, name string) (there bool, err error) {
	n, err := pod.Open()
	if err != nil {
		return false, err
	}
	defer n.Close()
	err = n.Do(func() (err error) {
		there, err = ns.HasLink(name)
		return err
	})
	return there, err
}
