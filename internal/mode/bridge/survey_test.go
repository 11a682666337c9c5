package bridge_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/kernel/ns"
	kind "github.com/berth-net/berth/internal/kinds/bridgeport"
	"github.com/berth-net/berth/internal/mode"
	"github.com/berth-net/berth/internal/mode/bridge"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/stamp"
)

// lan is a pool of 192.0.2.64/26 on a segment.
type lan struct{ mode.NativePools }

func (lan) PoolOf(a netip.Addr) string {
	if netip.MustParsePrefix("192.0.2.64/26").Contains(a) {
		return "lan"
	}
	return ""
}

func (lan) Segment(pool string) *ipam.Segment {
	if pool != "lan" {
		return nil
	}
	return &ipam.Segment{Subnets: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}
}

// seen are ports that were seen on a node.
type seen struct {
	bridge.Ports
	all []kind.Seen
}

func (s seen) Survey(func(ns.Ref, func(*ns.Netns))) ([]kind.Seen, error) { return s.all, nil }

// port is what is seen of a port whose alias says some addresses, and whose pod says others.
func port(container string, said []netip.Addr, inPod ...string) kind.Seen {
	id := hold.NewID()
	alias := stamp.PortAlias("aaaaaaaaaa", id, stamp.Key{Network: "net", ContainerID: container, Ifname: "eth0"}, 1)
	of, _ := stamp.ParsePort(alias)
	s := kind.Seen{Stamp: of, Said: said, Spec: &kind.Spec{Name: of.Link(), Alias: alias, Bridge: "br0", Netns: ns.Ref{Ino: 1}}}
	for _, a := range inPod {
		s.Spec.Addresses = append(s.Spec.Addresses, netip.MustParsePrefix(a))
	}
	return s
}

// Without a ledger nobody knows whether an IPAM plugin has given a port's addresses to others since: the port is adopted without them, whether its alias has
// them or its pod. A pod whose port says such an address gets no other by what the pod says. Addresses of pools stay.
func TestSurveyOfLentAddresses(t *testing.T) {
	lent, pooled := netip.MustParseAddr("10.7.0.2"), netip.MustParseAddr("192.0.2.65")
	m := bridge.New(bridge.Options{Instance: "aaaaaaaaaa", Pools: lan{}, Boottime: func() int64 { return 1 }, Ports: seen{all: []kind.Seen{
		port("pooled", []netip.Addr{pooled}),
		port("lent", []netip.Addr{lent}, "10.7.0.2/24", "192.0.2.70/24"),
		port("later", nil, "10.7.0.3/24"),
	}}})
	found, err := m.Survey("epoch", time.Time{}, nil)
	nettest.Must(t, err)
	var got []string
	for _, p := range found {
		h, _ := p.Owner.Find(kind.KindName)
		got = append(got, fmt.Sprint(p.Record.ContainerID, p.Record.Pool, p.Addresses, p.Owner.Names, h.Spec.(*kind.Spec).Addresses, p.Lost))
	}
	want := []string{
		"pooledlan[192.0.2.65] [address:192.0.2.65] [192.0.2.65/24] []",
		"lent[] [] [] [addresses pool]",
		"later[] [] [] [addresses pool]",
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("found are\n%q, want\n%q", got, want)
	}
}
