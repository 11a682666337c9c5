package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/berth-net/berth/internal/stamp"

	"github.com/berth-net/berth/internal/boottime"
	"github.com/berth-net/berth/internal/deletions"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/conntrack"
	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/egress"
	"github.com/berth-net/berth/internal/kinds/link"
	"github.com/berth-net/berth/internal/kinds/poolroute"
)

// node is all that an agent sees and changes of its node: nothing else in this
// package asks the kernel. openKernel makes the real one; the model's
// (fakenode_test.go) is in memory.
type node struct {
	self ns.Ref    // the node's network namespace
	here *ns.Netns // the same, open; nil if the node is in memory
	boot string    // the boot's id

	conn interface { // rtnetlink, for what is no kind's
		Veths(keep func(rtnl.Link) (bool, error)) ([]rtnl.Link, error)
		Link(name string) (rtnl.Link, error)
		Routes(rtnl.RouteFilter) ([]rtnl.Route, error)
		Neighbours() ([]rtnl.Neighbour, error)
		UplinkMTU() (int, error)
		Close() error
	}
	tracked interface { // connection tracking
		Forget([]netip.Addr) error
		ForgetExposed(conntrack.Rules) error
		Load() (entries, most int, err error)
		Trim(context.Context, map[netip.Addr]int, conntrack.Bounds) (map[int]int, error)
		Close()
	}
	egress interface { // the agent's nftables table
		Kind() hold.Kind
		SetRuleset(nft.Ruleset) error
		Retry() error
		Lacks() nft.Parts
		Run(context.Context, egress.Report)
	}
	routes interface { // of the pools
		Kind() hold.Kind
	}
	links interface { // the pods'
		Kind() hold.Kind
		VerifyPod(context.Context, hold.Hold) error
		Restamp(s *link.Spec, start int64) error
		ListAhead()
		Whole(context.Context) ([]rtnl.Link, error)
		DownDying(context.Context) error
	}
	monitor  func() (monitor, error)              // tells of changes by others; nil: nothing does
	news     monitor                              // the one that is listened to; nil: none is
	noticed  func(*deletions.Queue, func()) error // calls back whenever something new is in the queue
	identify func(ns.Ref) (ns.Ref, error)         // what is at a namespace's path, as ns.Ref.Open says
	occupied func(ns.Ref, string) (bool, error)   // whether an interface of that name is in a namespace
	sysctl   func(name, value string) error       // sets one of the node's network namespace
	sole     func() (*lock, error)                // makes this the only agent of its instance; nil: it is
	wall     func() time.Time                     // the wall clock, which may be set at any time: for people
	boottime func() int64                         // CLOCK_BOOTTIME, ns
}

// openKernel opens the node's network namespace and makes the kinds' doors.
func (a *Agent) openKernel() error {
	here, err := ns.Self()
	if err != nil {
		return fmt.Errorf("looking at the node's network namespace: %w", err)
	}
	a.here, a.self = here, here.Ref()
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return fmt.Errorf("reading the boot id: %w", err)
	}
	a.boot = strings.TrimSpace(string(boot))
	conn, err := rtnl.Open(here)
	if err != nil {
		return fmt.Errorf("opening netlink: %w", err)
	}
	a.conn = conn
	if a.tracked, err = conntrack.Open(here); err != nil {
		return err
	}
	if err := a.openInstance(); err != nil {
		return err
	}
	barrier := egress.New(egress.Options{
		Tables: nft.Open(here), Ruleset: nft.Ruleset{Instance: a.instance}, Lacks: a.sayLacks,
		Differs: a.cutAnew,
	})
	a.egress = barrier
	a.routes = poolroute.New(poolroute.Options{Conn: conn, Metric: a.metric})
	links := link.New(link.Options{
		Conn: conn, Prefix: a.instance[:stamp.PrefixLen], Groups: a.groups,
		Barrier: barrier.Intact, Exposed: a.exposed, Since: a.since,
	})
	a.links = links
	a.monitor = func() (monitor, error) {
		m, err := conn.Monitor(a.groups, stamp.Links(a.instance))
		if err != nil {
			return nil, err
		}
		return links.Follow(m), nil
	}
	a.noticed = (*deletions.Queue).Watch
	a.sole = a.lockInstance
	a.identify, a.occupied, a.sysctl, a.wall, a.boottime = identify, occupied, ns.SetSysctl, time.Now, boottime.Now
	return nil
}

// openInstance reads the instance's id, or mints one that no link has.
func (a *Agent) openInstance() (err error) {
	a.instance, a.first, err = loadInstance(a.Root, func(instance string) (bool, error) {
		links, err := a.conn.Veths(ofInstance(instance))
		return len(links) > 0, err
	})
	if err != nil {
		return err
	}
	if a.groups, err = stamp.GroupsOf(a.instance); err != nil {
		return err
	}
	a.metric, err = stamp.MetricOf(a.instance)
	return err
}

func identify(ref ns.Ref) (ns.Ref, error) {
	n, err := ref.Open()
	if err != nil {
		return ns.Ref{}, err
	}
	defer n.Close()
	return n.Ref(), nil
}

// occupied reports whether an interface of a name is in a pod, of whomever.
//
//	ip -n POD link show NAME
func occupied(pod ns.Ref, name string) (there bool, err error) {
	n, err := pod.Open()
	if err != nil {
		return false, err
	}
	defer n.Close()
	err = n.Do(func() error {
		there = ns.HasLink(name)
		return nil
	})
	return there, err
}

func (a *Agent) closeKernel() error {
	if a.news != nil {
		_ = a.news.Close() // again, if somebody got to watch
	}
	a.tracked.Close()
	err := a.conn.Close()
	if a.here != nil {
		err = errors.Join(err, a.here.Close())
	}
	return errors.Join(err, a.locked.release())
}
