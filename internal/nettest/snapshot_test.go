package nettest

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	nft "github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel/ns"
)

func cidr(t *testing.T, s string) *net.IPNet {
	t.Helper()
	n, err := netlink.ParseIPNet(s)
	Must(t, err)
	return n
}

// change is something that the test does in a node, and undoes.
type change struct {
	name     string
	do, undo func() error
	sees     string // a part of the difference that the change makes
}

// A snapshot shows each change, and shows no difference once the change is undone.
func TestSnapshot(t *testing.T) {
	node := Node(t)
	base := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "base0"}, PeerName: "base1"}
	Must(t, node.Do(func() error { return netlink.LinkAdd(base) }))
	changes := slices.Concat(linkChanges(base), routeChanges(t, base), otherChanges())
	for _, c := range changes {
		t.Run(c.name, func(t *testing.T) {
			before := Snapshot(t, node)
			Must(t, node.Do(c.do))
			if diff := before.Diff(Snapshot(t, node)); !strings.Contains(diff, c.sees) {
				t.Errorf("not seen, %q:\n%s", c.sees, diff)
			}
			Must(t, node.Do(c.undo))
			Same(t, before, Snapshot(t, node), "seen after it is undone")
		})
	}
}

func linkChanges(base netlink.Link) []change {
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "veth0"}, PeerName: "veth1"}
	both := func(set func(netlink.Link) error) error {
		peer, err := netlink.LinkByName("base1")
		if err != nil {
			return err
		}
		if err := set(peer); err != nil {
			return err
		}
		return set(base)
	}
	limit := &netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: base.Attrs().Index, Parent: netlink.HANDLE_ROOT},
		Rate:       1000, Limit: 2000, Buffer: 1 << 20,
	}
	return []change{
		{"qdisc", func() error { return netlink.QdiscAdd(limit) }, func() error { return netlink.QdiscDel(limit) },
			"+qdisc tbf dev base0 parent root"},
		{"link", func() error { return netlink.LinkAdd(veth) }, func() error { return netlink.LinkDel(veth) },
			"+link veth1 veth group 0 mtu 1500 down mac "},
		{"group", func() error { return netlink.LinkSetGroup(base, 1<<30) }, func() error { return netlink.LinkSetGroup(base, 0) },
			"+link base0 veth group 1073741824 "},
		{"alias", func() error { return netlink.LinkSetAlias(base, "an alias") }, func() error { return netlink.LinkSetAlias(base, "") },
			`alias "an alias"`},
		{"mtu", func() error { return netlink.LinkSetMTU(base, 1400) }, func() error { return netlink.LinkSetMTU(base, 1500) },
			" mtu 1400 "},
		{"up", func() error { return both(netlink.LinkSetUp) }, func() error { return both(netlink.LinkSetDown) },
			" up,lower_up "},
	}
}

func routeChanges(t *testing.T, base netlink.Link) []change {
	index := base.Attrs().Index
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	address := &netlink.Addr{IPNet: cidr(t, "192.0.2.1/32")}
	route := &netlink.Route{Dst: cidr(t, "10.88.0.0/16"), Type: unix.RTN_UNREACHABLE, Table: 254, Protocol: 98, Priority: 7}
	route6 := &netlink.Route{Dst: cidr(t, "fd00::/64"), Type: unix.RTN_UNREACHABLE, Table: 100, Protocol: 98, Priority: 7}
	rule := netlink.NewRule()
	rule.Priority, rule.Table, rule.IifName, rule.Family = 500, 100, "base0", netlink.FAMILY_V6
	neigh := &netlink.Neigh{LinkIndex: index, IP: net.IPv4(169, 254, 1, 1), State: netlink.NUD_PERMANENT, HardwareAddr: mac}
	proxy := &netlink.Neigh{LinkIndex: index, IP: net.IPv4(169, 254, 1, 2), Flags: netlink.NTF_PROXY, Family: netlink.FAMILY_V4}
	return []change{
		{"address", func() error { return netlink.AddrAdd(base, address) }, func() error { return netlink.AddrDel(base, address) },
			"+address 192.0.2.1/32 dev base0 "},
		{"route", func() error { return netlink.RouteAdd(route) }, func() error { return netlink.RouteDel(route) },
			"+route inet unreachable 10.88.0.0/16 table 254 proto 98 metric 7"},
		{"route6", func() error { return netlink.RouteAdd(route6) }, func() error { return netlink.RouteDel(route6) },
			"+route inet6 unreachable fd00::/64 dev lo table 100 proto 98 metric 7"},
		{"rule", func() error { return netlink.RuleAdd(rule) }, func() error { return netlink.RuleDel(rule) },
			"+rule inet6 priority 500 from all to all iif base0 "},
		{"neighbour", func() error { return netlink.NeighAdd(neigh) }, func() error { return netlink.NeighDel(neigh) },
			"+neighbour 169.254.1.1 dev base0 lladdr 02:00:00:00:00:01 permanent"},
		{"proxy", func() error { return netlink.NeighAdd(proxy) }, func() error { return netlink.NeighDel(proxy) },
			"+neighbour 169.254.1.2 dev base0 proxy"},
	}
}

func otherChanges() []change {
	const forward = "ipv4/ip_forward"
	toggle := func() error {
		was, err := ns.Sysctl(forward)
		if err != nil {
			return err
		}
		return ns.SetSysctl(forward, map[string]string{"0": "1", "1": "0"}[was])
	}
	flush := func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) }
	return []change{
		{"sysctl", toggle, toggle, "+sysctl ipv4/ip_forward = "},
		{"conntrack", func() error { return entry(unix.AF_INET, "10.88.0.2", "10.88.0.3") }, flush,
			"+conntrack proto 17 src 10.88.0.2 dst 10.88.0.3 sport 1000 dport 53 reply src 10.88.0.3"},
		{"conntrack6", func() error { return entry(unix.AF_INET6, "fd00::2", "fd00::3") }, flush,
			"+conntrack proto 17 src fd00::2 dst fd00::3 sport 1000 dport 53 reply src fd00::3"},
		{"nft", addTable, delTable, "+nft table inet berth-test chain drop rule 000 "},
	}
}

// entry makes a conntrack entry of UDP.
func entry(family netlink.InetFamily, from, to string) error {
	a, b := netip.MustParseAddr(from).AsSlice(), netip.MustParseAddr(to).AsSlice()
	return netlink.ConntrackCreate(netlink.ConntrackTable, family, &netlink.ConntrackFlow{
		FamilyType: uint8(family),
		Forward:    netlink.IPTuple{Protocol: unix.IPPROTO_UDP, SrcIP: a, DstIP: b, SrcPort: 1000, DstPort: 53},
		Reverse:    netlink.IPTuple{Protocol: unix.IPPROTO_UDP, SrcIP: b, DstIP: a, SrcPort: 53, DstPort: 1000},
		TimeOut:    600,
	})
}

// addTable adds a table with a chain, a rule, a set and an element of it.
func addTable() error {
	conn, err := nft.New()
	if err != nil {
		return err
	}
	table := conn.AddTable(&nft.Table{Family: nft.TableFamilyINet, Name: "berth-test"})
	chain := conn.AddChain(&nft.Chain{Name: "drop", Table: table, Type: nft.ChainTypeFilter,
		Hooknum: nft.ChainHookPrerouting, Priority: nft.ChainPriorityRaw})
	conn.AddRule(&nft.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFGROUP, Register: 1},
		&expr.Cmp{Register: 1, Data: []byte{0, 0, 0, 9}},
		&expr.Counter{},
		&expr.Verdict{Kind: expr.VerdictDrop},
	}})
	set := &nft.Set{Table: table, Name: "pools", KeyType: nft.TypeIPAddr}
	if err := conn.AddSet(set, []nft.SetElement{{Key: []byte{10, 0, 0, 1}}}); err != nil {
		return err
	}
	conn.AddObj(&nft.NamedObj{Table: table, Name: "hits", Type: nft.ObjTypeCounter, Obj: &expr.Counter{}})
	return conn.Flush()
}

func delTable() error {
	conn, err := nft.New()
	if err != nil {
		return err
	}
	conn.DelTable(&nft.Table{Family: nft.TableFamilyINet, Name: "berth-test"})
	return conn.Flush()
}

func TestSnapshotShowsNftWhole(t *testing.T) {
	node := Node(t)
	Must(t, node.Do(addTable))
	got := Snapshot(t, node).Only("nft").String()
	for _, want := range []string{
		"nft table inet berth-test\n",
		"nft table inet berth-test chain drop { type filter hook prerouting priority -300; policy accept; }\n",
		"nft table inet berth-test chain drop rule 000 iifgroup 150994944 counter drop\n",
		"nft table inet berth-test set pools { type ipv4_addr; }\n",
		"nft table inet berth-test set pools element 10.0.0.1\n",
		"nft table inet berth-test counter hits\n",
	} {
		if !strings.Contains(got+"\n", want) {
			t.Errorf("%q is missing in:\n%s", want, got)
		}
	}
	Run(t, node, "nft add table inet berth-test { flags dormant ; }") // the table's rules do not hold any more
	if got := Snapshot(t, node).Only("nft").String() + "\n"; !strings.Contains(got, "nft table inet berth-test { flags dormant; }\n") {
		t.Errorf("that the table sleeps is missing in:\n%s", got)
	}
}

// Tables that come and go meanwhile keep nobody from taking a snapshot.
func TestSnapshotWhileNftChanges(t *testing.T) {
	node := Node(t)
	done, changed := make(chan struct{}), make(chan error, 1)
	go func() {
		changed <- node.Do(func() (err error) {
			for err == nil {
				select {
				case <-done:
					return nil
				default:
					err = errors.Join(addTable(), delTable())
				}
			}
			return err
		})
	}()
	for range 200 {
		if _, err := Look(node); err != nil {
			t.Error(err)
			break
		}
	}
	close(done)
	if err := <-changed; err != nil {
		t.Error(err)
	}
}
