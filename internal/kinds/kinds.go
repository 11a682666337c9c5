// Package kinds lists the kinds of the node agent, and makes their doors to the kernel.
package kinds

import (
	"context"
	"net/netip"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/conntrack"
	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/bridgeport"
	"github.com/berth-net/berth/internal/kinds/delegate"
	"github.com/berth-net/berth/internal/kinds/deviceinfo"
	"github.com/berth-net/berth/internal/kinds/flows"
	"github.com/berth-net/berth/internal/kinds/hostports"
	"github.com/berth-net/berth/internal/kinds/link"
	"github.com/berth-net/berth/internal/kinds/macvlan"
	"github.com/berth-net/berth/internal/kinds/noderoute"
	"github.com/berth-net/berth/internal/kinds/podgateway"
	"github.com/berth-net/berth/internal/kinds/podstatus"
	"github.com/berth-net/berth/internal/kinds/poolroute"
	"github.com/berth-net/berth/internal/kinds/shaping"
	"github.com/berth-net/berth/internal/kinds/table"
	"github.com/berth-net/berth/internal/kinds/vxlan"
	"github.com/berth-net/berth/internal/kinds/wireguard"
	"github.com/berth-net/berth/internal/runner/client"
	"github.com/berth-net/berth/internal/stamp"
)

// Doors are the kinds' ways into the kernel, with further functions that the agent needs.
type Doors struct {
	Table      Table
	Routes     interface{ Kind() hold.Kind } // of the pools
	NodeRoutes interface{ Kind() hold.Kind } // to other nodes' pods
	Tunnel     Tunnel                        // to other nodes
	WireGuard  Tunnel                        // to other nodes, encrypted; nil: a node in memory has none
	Links      Links
	Macvlans   Macvlans    // nil: a node in memory has none
	Bridged    BridgePorts // nil: a node in memory has none
	Ports      Ports
	Shaping    Shaping             // limits on links of other plugins
	Delegates  *delegate.Delegates // networks that other plugins make
	Infos      *deviceinfo.Infos   // files that tell of pods' devices
	Statuses   *podstatus.Statuses // what tells people of pods' networks
	Gateways   hold.Kind           // pods' default routes through a network that has asked for them
	// Monitor begins to hear of changes by others; nil: this node cannot tell of such changes.
	Monitor func() (Monitor, error)
}

// List lists the kinds, in the order in which a restart verifies them: first the kinds that keep dead
// pods' packets away, then the kinds of the pods' links, limits and host ports, and at last what other plugins make.
func (d *Doors) List(t Tracked, r flows.Routes) hold.Kinds {
	all := hold.Kinds{
		d.Table.Kind(),
		d.Routes.Kind(),
		d.Tunnel.DeviceKind(), // then what the device has, and then the routes that lead by the device
		d.Tunnel.PeerKind(),
	}
	if d.WireGuard != nil {
		all = append(all, d.WireGuard.DeviceKind(), d.WireGuard.PeerKind())
	}
	all = append(all, d.NodeRoutes.Kind(), flows.Kind(t, r), d.Links.Kind(), d.Shaping.Kind())
	if d.Macvlans != nil {
		all = append(all, d.Macvlans.Kind(), d.Macvlans.IPsKind())
	}
	if d.Bridged != nil {
		all = append(all, d.Bridged.Kind(), d.Bridged.IPsKind())
	}
	return append(all, d.Ports.Kind(), d.Infos.Kind(), d.Delegates.Kind(), d.Delegates.IPAMKind(), d.Delegates.LeaseKind(), d.Gateways, d.Statuses.Kind())
}

// Tunnel is the tunnel to other nodes.
type Tunnel interface {
	DeviceKind() hold.Kind
	PeerKind() hold.Kind
}

// OtherPorts returns the host ports of the node's other agents, by the names of their tables.
func (d *Doors) OtherPorts() (map[string][]nft.Port, error) { return d.Table.Others() }

// UnmapOther removes host ports from another agent's table, or, if whole is set, deletes that table.
func (d *Doors) UnmapOther(instance string, gone []nft.Port, whole bool) error {
	return d.Table.UnmapOther(instance, gone, whole)
}

// Open makes the doors to the network namespace here. conn must lead to the same namespace.
func Open(here *ns.Netns, conn *rtnl.Conn, m Marks, h Hooks) Doors {
	barrier := table.New(table.Options{
		Tables: nft.Open(here), Ruleset: nft.Ruleset{Instance: m.Instance}, Lacks: h.Lacks, Differs: h.Differs, Kept: h.Kept, Astray: h.Astray,
	})
	wire := wireguard.Options{Conn: conn, At: here, Instance: m.Instance, Secret: wireguard.FromFile(h.WireGuardKey), Make: h.WireGuard}
	links := link.New(link.Options{
		Conn: conn, Prefix: m.Instance[:stamp.PrefixLen], Groups: m.Groups,
		Barrier: barrier.Intact, Exposed: h.Exposed, Since: h.Since, Going: h.Going, Forwards: h.Forwards, Unpoliced: h.Unpoliced,
	})
	return Doors{
		Table:      barrier,
		Routes:     poolroute.New(poolroute.Options{Conn: conn, Metric: m.Metric}),
		NodeRoutes: noderoute.New(noderoute.Options{Conn: conn, Metric: m.Metric, Tunnel: stamp.Tunnel(m.Instance)}),
		Tunnel:     vxlan.New(vxlan.Options{Conn: conn, Instance: m.Instance}),
		WireGuard:  wireguard.New(wire),
		Links:      links,
		Macvlans:   macvlan.New(macvlan.Options{Conn: conn, At: here, Instance: m.Instance, Deletions: h.Deletions, Going: h.Going}),
		Bridged:    bridgeport.New(bridgeport.Options{Conn: conn, At: here, Instance: m.Instance, Since: h.Since, Going: h.Going}),
		Ports:      OpenPorts(barrier, m, h),
		Shaping:    shaping.New(shaping.Options{Conn: conn, Unpoliced: h.Unpoliced}),
		Delegates:  OpenDelegates(h),
		Infos:      OpenInfos(h),
		Statuses:   OpenStatuses(h),
		Gateways:   OpenGateways(),
		Monitor: func() (Monitor, error) {
			news, err := conn.Monitor(m.Groups, stamp.Links(m.Instance))
			if err != nil {
				return nil, err
			}
			return links.Follow(news), nil
		},
	}
}

// OpenPorts makes the door to the host ports in an instance's table.
func OpenPorts(maps Maps, m Marks, h Hooks) Ports {
	return hostports.New(hostports.Options{
		Maps: maps, Exposed: h.Mapped, Left: h.Left, Forget: h.Forget, Link: func(id hold.ID) string { return stamp.Link(m.Instance, id) },
	})
}

// OpenDelegates makes the door to networks that other plugins make.
func OpenDelegates(h Hooks) *delegate.Delegates {
	run := &client.Exec{Client: client.New(h.Runner)}
	return delegate.New(delegate.Options{Exec: run, Open: h.OpenNetns, Run: string(hold.NewID())})
}

// OpenInfos makes the door to the files that tell of pods' devices.
func OpenInfos(h Hooks) *deviceinfo.Infos { return deviceinfo.New(h.Infos) }

// OpenStatuses makes the door to pods' statuses.
func OpenStatuses(h Hooks) *podstatus.Statuses { return podstatus.New(h.Status) }

// OpenGateways returns the kind of pods' default routes through a network that has asked for them.
func OpenGateways() hold.Kind { return podgateway.Kind() }

// Marks tell an instance's things on the node from other programs' things.
type Marks struct {
	Instance string
	Groups   stamp.Groups // of links
	Metric   uint32       // of the routes of pools and to other nodes
}

// Hooks are the functions that the doors call.
type Hooks struct {
	// Lacks is called with the parts of the nftables table that the kernel cannot have,
	// whenever they change.
	Lacks func(nft.Parts)
	// Differs is called if the table may not cut dying pods off.
	Differs func()
	// Exposed is called if a pod's link was not among the links that the table's rules are for.
	Exposed func()
	// Mapped is called with host ports that the agent has mapped, if older connections may have had
	// these ports.
	Mapped func([]nft.Mapping)
	// Forget has the kernel forget the connections that bound host ports have led to their pods (node.Mark).
	Forget func([]nft.Mapping) error
	// Left removes the host ports that a lost agent, whom nobody replaces, has left.
	Left func() error
	// Kept returns the host ports in the table that an owner has.
	Kept func(hold.ID, []nft.Mapping) []nft.Mapping
	// Astray is called with host ports that have led to a pod by mistake.
	Astray func([]nft.Mapping)
	// Since returns when the last ADD began that the agent answered with an attachment (CLOCK_BOOTTIME,
	// ns); 0: not known.
	Since func(hold.ID) int64
	// Going reports whether an owner's deletion waits that the ledger does not know of yet.
	Going func(hold.ID) (bool, error)
	// Forwards reports whether the node has to forward what pods send.
	Forwards func() bool
	// WireGuardKey is the file of the node's private key of WireGuard, which is made when it is first asked for.
	WireGuardKey string
	// WireGuard makes a WireGuard device; nil: the kernel makes it (wireguard.Options.Make).
	WireGuard func(name string, mtu int) error
	// Unpoliced is called once, with the reason, if the kernel cannot hold pods to the rates at which
	// they may send.
	Unpoliced func(error)
	// Runner is the socket of berth-runner, which executes other CNI plugins.
	Runner string
	// Infos says where the files that tell of pods' devices are, and is told of those that cannot be had.
	Infos deviceinfo.Options
	// Status says and writes what people are told of a pod's networks.
	Status podstatus.Options
	// OpenNetns opens the network namespace of a pod (node.Node.OpenNetns).
	OpenNetns func(ns.Ref) (ns.Handle, error)
	// Deletions sends the requests that delete links in pods (rtnl.Conn.DeleteBy); nil: the doors send them.
	Deletions rtnl.Sender
	// Unhelped is called once, with the reason, if no process of its own can make the system calls that may
	// never end (helper.Helper).
	Unhelped func(error)
}

// Tracked is connection tracking.
type Tracked interface {
	ForgetUnless(addrs []netip.Addr, spared func(netip.Addr) bool) error
	Named(is func(netip.Addr) bool) ([]netip.Addr, error)
	ForgetExposed(conntrack.Rules) error
	ForgetMapped(conntrack.Mapped, conntrack.Led) error
	Load() (entries, most int, err error)
	Trim(context.Context, map[netip.Addr]int, conntrack.Bounds) (map[int]int, error)
	Close()
}

// Table is the agent's nftables table.
type Table interface {
	Kind() hold.Kind
	SetRuleset(nft.Ruleset) error
	Retry() error
	Lacks() nft.Parts
	Strays(addrs []netip.Addr) (found []netip.Addr, whole bool, err error)
	Noted() ([]netip.Addr, error)
	ClearStrays(addrs []netip.Addr) error
	MarkStrays() error
	Others() (map[string][]nft.Port, error)
	UnmapOther(instance string, gone []nft.Port, whole bool) error
	Run(context.Context, table.Report)
}

// Links are the pods' links.
type Links interface {
	Kind() hold.Kind
	VerifyPodCeded(context.Context, hold.Hold, rtnl.Families) error
	Restamp(s *link.Spec, start int64) error
	ListAhead()
	Whole(context.Context) ([]rtnl.Link, error)
	DownDying(context.Context) error
}

// Macvlans are the pods' macvlans.
type Macvlans interface {
	Kind() hold.Kind
	IPsKind() hold.Kind
	VerifyPod(context.Context, hold.Hold) error
	Survey(each func(self ns.Ref, f func(*ns.Netns))) []macvlan.Seen
}

// BridgePorts are the pods' ports on bridges of the node.
type BridgePorts interface {
	Kind() hold.Kind
	IPsKind() hold.Kind
	VerifyPod(context.Context, hold.Hold) error
	Restamp(s *bridgeport.Spec, start int64) error
	Bridge(name string) (rtnl.Bridge, error)
	Whole() ([]rtnl.Link, error)
	Survey(each func(self ns.Ref, f func(*ns.Netns))) ([]bridgeport.Seen, error)
}

// Maps are the maps of host ports in a table.
type Maps = hostports.Maps

// Ports are the pods' host ports.
type Ports interface {
	Kind() hold.Kind
	Mapped() (map[hold.ID]*hostports.Spec, error)
}

// Shaping are the limits on links of other plugins.
type Shaping interface {
	Kind() hold.Kind
	Look(netns ns.Ref, ifname string, addrs []netip.Addr) (shaping.Sight, error)
	VerifyPod(context.Context, *shaping.Spec) error
}

// Monitor tells of changes that others may have made (rtnl.Monitor).
type Monitor interface {
	Next() ([]rtnl.News, error)
	Close() error
}
