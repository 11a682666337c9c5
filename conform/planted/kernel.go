package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"

	"github.com/berth-net/berth/conform/oracle"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// configure sets both ends of the veth pair up. It gives each end an address and routes to the
// other end.
func (c *call) configure(l *lease, pod *os.File) error {
	gateway := host(c.gateway())
	err := inside(pod, func() error {
		link, err := up(c.ifname)
		if err != nil {
			return err
		}
		if err := c.limit(link, c.Runtime.Bandwidth.EgressRate, c.Runtime.Bandwidth.EgressBurst); err != nil {
			return err
		}
		// ip address add ADDRESS/32 dev IFNAME
		if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: host(l.Address)}); err != nil {
			return fmt.Errorf("giving the pod its address: %w", err)
		}
		// ip route add GATEWAY dev IFNAME; ip route add default via GATEWAY dev IFNAME
		// onlink. If a pod has several attachments, the routes of the first are preferred.
		index := link.Attrs().Index
		direct := &netlink.Route{LinkIndex: index, Dst: gateway, Scope: netlink.SCOPE_LINK, Priority: index}
		if err := netlink.RouteAdd(direct); err != nil {
			return fmt.Errorf("routing to the gateway: %w", err)
		}
		def := &netlink.Route{LinkIndex: index, Gw: gateway.IP, Flags: int(netlink.FLAG_ONLINK), Priority: index}
		if err := netlink.RouteAdd(def); err != nil {
			return fmt.Errorf("routing by the gateway: %w", err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	link, err := up(l.Link)
	if err != nil {
		return err
	}
	if err := c.limit(link, c.Runtime.Bandwidth.IngressRate, c.Runtime.Bandwidth.IngressBurst); err != nil {
		return err
	}
	// ip address add GATEWAY/32 dev LINK; ip route add ADDRESS dev LINK
	if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: gateway}); err != nil {
		return fmt.Errorf("giving %s the gateway's address: %w", l.Link, err)
	}
	if err := netlink.RouteAdd(podRoute(l, link)); err != nil {
		return fmt.Errorf("routing to the pod: %w", err)
	}
	return c.addRule(l)
}

// limit is `tc qdisc add dev LINK root tbf rate RATE burst BURST limit LIMIT`.
func (c *call) limit(link netlink.Link, rate, burst uint64) error {
	if rate == 0 || c.fault("rate-ignored") {
		return nil
	}
	switch {
	case c.fault("rate-too-high"): // a plugin that takes bits for bytes
		rate *= 8
	case c.fault("rate-too-low"):
		rate /= 2
	}
	rate, burst = rate/8, burst/8
	q := &netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		Rate:       rate, Buffer: netlink.Xmittime(rate, uint32(burst)), Limit: uint32(rate/40 + burst),
	}
	if err := netlink.QdiscAdd(q); err != nil {
		return fmt.Errorf("limiting what %s sends: %w", link.Attrs().Name, err)
	}
	return nil
}

// podRoute is `ip route add ADDRESS dev LINK`.
func podRoute(l *lease, link netlink.Link) *netlink.Route {
	return &netlink.Route{LinkIndex: link.Attrs().Index, Dst: host(l.Address), Scope: netlink.SCOPE_LINK}
}

// These are the priorities of pods' rules, and of the rules that a chained plugin adds for pods.
const (
	priority        = 512
	priorityChained = 513
)

// rule is `ip rule ... to ADDRESS lookup main priority 512`.
func (l *lease) rule() *netlink.Rule {
	r := netlink.NewRule()
	r.Dst, r.Table, r.Priority, r.Family = host(l.Address), unix.RT_TABLE_MAIN, priority, netlink.FAMILY_V4
	if l.Chained {
		r.Priority = priorityChained
	}
	return r
}

// addRule adds the rule of a lease. If there is a rule for the address already, it belongs to this
// lease, since the address belongs to this lease.
func (c *call) addRule(l *lease) error {
	if err := netlink.RuleAdd(l.rule()); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("adding the rule: %w", err)
	}
	return nil
}

// hasRule reports whether the rule of a lease is there.
func (l *lease) hasRule() (bool, error) {
	found, err := oracle.List(func() ([]netlink.Rule, error) {
		return netlink.RuleListFiltered(netlink.FAMILY_V4, l.rule(), netlink.RT_FILTER_PRIORITY|netlink.RT_FILTER_DST)
	})
	return len(found) > 0, err
}

// deleteRule is `ip rule del ...`, repeated until no such rule is left.
func (l *lease) deleteRule() error {
	for {
		switch err := netlink.RuleDel(l.rule()); {
		case errors.Is(err, unix.ENOENT):
			return nil
		case err != nil:
			return fmt.Errorf("deleting the rule: %w", err)
		}
	}
}

// deleteLink is `ip link del NAME`. A link that does not exist counts as deleted.
func deleteLink(name string) error {
	link, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkDel(link)
	}
	var none netlink.LinkNotFoundError
	if err != nil && !errors.As(err, &none) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("deleting %s: %w", name, err)
	}
	return nil
}

// deleteRoute deletes what would refuse the route of the address's next owner: the link keeps it until the pod's namespace is gone, which
// the kernel removes when it likes.
func deleteRoute(l *lease) error {
	link, err := netlink.LinkByName(l.Link)
	if err == nil {
		err = netlink.RouteDel(podRoute(l, link))
	}
	var none netlink.LinkNotFoundError
	if err != nil && !errors.As(err, &none) && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("deleting the route to %s: %w", l.Address, err)
	}
	return nil
}

func linkExists(name string) (bool, error) {
	_, err := netlink.LinkByName(name)
	var none netlink.LinkNotFoundError
	if errors.As(err, &none) {
		return false, nil
	}
	return err == nil, err
}

// up is `ip link set NAME up`, and returns the link.
func up(name string) (netlink.Link, error) {
	link, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkSetUp(link)
	}
	if err != nil {
		return nil, fmt.Errorf("setting %s up: %w", name, err)
	}
	return link, nil
}

func mac(name string) (string, error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return "", fmt.Errorf("looking for %s: %w", name, err)
	}
	return link.Attrs().HardwareAddr.String(), nil
}

// host returns an address with the longest prefix length.
func host(a netip.Addr) *net.IPNet { return netlink.NewIPNet(a.AsSlice()) }

// inside runs a function in a pod's network namespace.
func inside(pod *os.File, f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		if err := unix.Setns(int(pod.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- fail(codeVariable, "CNI_NETNS: entering it: %w", err)
			return
		}
		done <- f()
	}()
	return <-done
}
