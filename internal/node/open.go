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
	"github.com/berth-net/berth/internal/kernel/helper"
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
	deletes := &helper.Helper{}
	conn.DeleteBy(deletes)
	self := here.Ref()
	return &Node{
		Place: daemon.Place{
			Netns: self, Boot: strings.TrimSpace(string(boot)), Wall: time.Now, Boottime: boottime.Now,
			Sole: daemon.LockInstance(self),
		},
		Here: here, Conn: conn, Tracked: tracked,
		Equip: func(n *Node, h Hooks) error {
			deletes.Unhelped, h.Deletions = h.Unhelped, deletes
			n.Doors = kinds.Open(here, conn, n.Marks, h)
			return nil
		},
		Noticed:   func(watch func(func()) error, changed func()) error { return watch(changed) },
		OpenNetns: openNetns, Ends: link.FindEnds,
		Sysctl: ns.Sysctl, SetSysctl: ns.SetSysctl,
		Shut: func() error {
			deletes.Close()
			return errors.Join(conn.Close(), here.Close())
		},
	}, nil
}

func openNetns(ref ns.Ref) (ns.Handle, error) {
	n, err := ref.Open()
	if err != nil {
		return nil, err // and no Handle that holds a nil
	}
	return n, nil
}
