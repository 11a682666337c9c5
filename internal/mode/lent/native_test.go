package lent_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/cni/netconf"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/bridgeport"
	"github.com/berth-net/berth/internal/kinds/delegate"
	kind "github.com/berth-net/berth/internal/kinds/macvlan"
	"github.com/berth-net/berth/internal/mode/bridge"
	"github.com/berth-net/berth/internal/mode/lent"
	"github.com/berth-net/berth/internal/mode/macvlan"
	"github.com/berth-net/berth/internal/nettest"
)

func newNative() *lent.Mode {
	base := macvlan.New(macvlan.Options{
		Instance: "aaaaaaaaaa", Pools: pools{}, Link: func(string) (rtnl.Link, error) { return rtnl.Link{}, nil },
		Verify: func(context.Context, hold.Hold) error { return nil },
	})
	return lending(base)
}

// bridges is a node whose every link is a bridge.
type bridges struct{ bridge.Ports }

func (bridges) Bridge(string) (rtnl.Bridge, error) { return rtnl.Bridge{MTU: 1500}, nil }

func newBridge() *lent.Mode {
	return lending(bridge.New(bridge.Options{
		Instance: "aaaaaaaaaa", Pools: pools{}, Ports: bridges{}, Link: func(string) (rtnl.Link, error) { return rtnl.Link{}, nil },
	}))
}

func lending(base lent.Base) *lent.Mode {
	return lent.New(base, lent.Options{
		Run: "run", PoolOf: pools{}.PoolOf, Check: func(context.Context, *delegate.Spec) error { return nil },
		Reached: func([]netip.Addr) []netip.Addr { return nil },
	})
}

// natives are the configurations' keys of the native modes.
var natives = map[string]string{"macvlan": `"mode":"macvlan","master":"eth1"`, "bridge": `"mode":"bridge","bridge":"br0"`}

// given plans an attachment of a native mode whose plugin has then given ips and routes, in JSON.
func given(t *testing.T, m *lent.Mode, plugin, ips, routes string) hold.Owner {
	t.Helper()
	o := planned(t, m, `,`+natives[m.Name()]+`,"ipam":{"type":"`+plugin+`"}`)
	for _, h := range o.Holds {
		var s *delegate.IPAM
		switch is := h.Spec.(type) {
		case *delegate.IPAM:
			s = is
		case *delegate.Lease:
			s = &is.IPAM
		default:
			continue
		}
		s.Done, s.Result = true, `{"cniVersion":"1.0.0","ips":[`+ips+`],"routes":[`+routes+`]}`
		o.Names = s.Names()
	}
	return o
}

const twoIPs = `{"address":"10.7.0.2/24","gateway":"10.7.0.1"},{"address":"fd00:7::2/64","gateway":"fd00:7::1"}`

// A native mode's interface has the plugin's addresses with their prefixes and its routes; the result has the gateways, too. The MAC follows from the address.
func TestNative(t *testing.T) {
	m := newNative()
	o := given(t, m, "static", twoIPs, `{"dst":"192.0.2.0/24"},{"dst":"198.51.100.0/24","gw":"10.7.0.3"},{"dst":"192.0.2.0/24"},{"dst":"203.0.113.0/24","gw":"0.0.0.0","scope":253}`)
	if len(o.Holds) != 1 || o.Ordered || !m.Incomplete(o) {
		t.Fatalf("the plan is %+v", o)
	}
	change, _, err := m.Complete(t.Context(), o, record)
	nettest.Must(t, err, change(&o))
	h, _ := o.Find(kind.KindName)
	s := h.Spec.(*kind.Spec)
	if got := fmt.Sprint(s.Addresses, s.Routes); m.Incomplete(o) || len(o.Names) != 2 || s.Bare ||
		got != "[10.7.0.2/24 fd00:7::2/64] [{192.0.2.0/24 10.7.0.1} {198.51.100.0/24 10.7.0.3} {203.0.113.0/24 invalid IP}]" {
		t.Errorf("the macvlan has %s", got)
	}
	again := given(t, m, "static", twoIPs, "")
	change, _, err = m.Complete(t.Context(), again, record)
	nettest.Must(t, err, change(&again))
	h, _ = again.Find(kind.KindName)
	if mac := h.Spec.(*kind.Spec).MAC; mac != s.MAC {
		t.Errorf("with the same addresses the MAC is %s, and was %s", mac, s.MAC)
	}
	for _, o := range []hold.Owner{o, again} { // the gateways are told also if no route leads by them
		r, err := m.Result(o, record)
		if nettest.Must(t, err); fmt.Sprint(r.IPs[0].Gateway, r.IPs[1].Gateway) != "10.7.0.1 fd00:7::1" {
			t.Errorf("the result is %v", r)
		}
	}
}

// Complete refuses routes that the interface cannot have, and names them.
func TestUnusableRoutes(t *testing.T) {
	m := newNative()
	const one = `{"address":"10.7.0.2/24","gateway":"10.7.0.1"}`
	for want, routes := range map[string]string{
		"gives a route to 192.0.2.0/24 by 10.8.0.1, which is on no network":       `{"dst":"192.0.2.0/24","gw":"10.8.0.1"}`,
		"gives a route to 2001:db8::/32, and no address of its family":            `{"dst":"2001:db8::/32"}`,
		"a route to 192.0.2.0/24 by fd00::1; expected a gateway of the same":      `{"dst":"192.0.2.0/24","gw":"fd00::1"}`,
		"a route to 192.0.2.0/24 with mtu, advmss, priority, table or scope":      `{"dst":"192.0.2.0/24","priority":7}`,
		"a route to 192.0.2.1/32 with mtu, advmss, priority, table or scope":      `{"dst":"192.0.2.1/32","table":7}`,
		"a route to 192.0.2.2/32 with mtu, advmss, priority, table or scope":      `{"dst":"192.0.2.2/32","gw":"10.7.0.1","scope":253}`,
		"static gives 257 routes; expected at most 256":                           strings.Repeat(`{"dst":"192.0.2.0/24"},`, 256) + `{"dst":"192.0.2.0/24"}`,
		"IPAM plugin static gives a route to 192.0.2.3/32 with mtu, advmss, prio": `{"dst":"192.0.2.3/32","mtu":1400}`,
	} {
		_, _, err := m.Complete(t.Context(), given(t, m, "static", one, routes), record)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	near := given(t, m, "static", one, `{"dst":"192.0.2.0/24","gw":"10.8.0.1"},{"dst":"10.8.0.0/24","scope":253}`)
	if _, _, err := m.Complete(t.Context(), near, record); err != nil {
		t.Errorf("a gateway on a network to which a route leads: %v", err)
	}
}

// A port of a bridge has the plugin's addresses and routes, and its MAC follows from the address.
func TestNativeBridge(t *testing.T) {
	m := newBridge()
	var macs []string
	for range 2 {
		o := given(t, m, "static", twoIPs, `{"dst":"192.0.2.0/24"},{"dst":"198.51.100.0/24","gw":"10.7.0.3"}`)
		change, _, err := m.Complete(t.Context(), o, record)
		nettest.Must(t, err, change(&o))
		h, _ := o.Find(bridgeport.KindName)
		s := h.Spec.(*bridgeport.Spec)
		if got := fmt.Sprint(s.Addresses, s.Routes); m.Incomplete(o) || o.Ordered || s.Bare || m.NeedsPod(o) ||
			got != "[10.7.0.2/24 fd00:7::2/64] [{192.0.2.0/24 10.7.0.1} {198.51.100.0/24 10.7.0.3}]" {
			t.Errorf("the port has %s", got)
		}
		macs = append(macs, s.MAC)
		res, err := m.Result(o, record)
		if nettest.Must(t, err); fmt.Sprint(res.IPs[0].Gateway, res.IPs[1].Gateway, *res.IPs[0].Interface) != "10.7.0.1 fd00:7::1 1" {
			t.Errorf("the result is %v", res)
		}
	}
	if macs[0] != macs[1] {
		t.Errorf("with the same addresses the MACs are %s", macs)
	}
}

// A plugin that asks by the interface gets one without addresses ahead of it; what it gives comes behind. All go in reverse, one after the other.
func TestLater(t *testing.T) {
	later(t, newNative(), "[macvlan lease flows macvlanip]")
	later(t, newBridge(), "[bridgeport lease flows bridgeportip]")
	c, bad := netconf.Parse([]byte(`{"cniVersion":"1.0.0","name":"net","type":"berth-cni","ipam":{"type":"dhcp"}}`))
	if bad != nil {
		t.Fatal(bad)
	}
	if err := newMode(nil).Fit(record, c); err == nil || !strings.Contains(err.Error(), `"dhcp", which needs a pod's interface`) {
		t.Errorf("mode routed: %v", err)
	}
}

func later(t *testing.T, m *lent.Mode, holds string) {
	t.Helper()
	o := given(t, m, "dhcp", `{"address":"10.7.0.2/24","gateway":"10.7.0.1"}`, `{"dst":"0.0.0.0/0"}`)
	bare, mac, addrs := false, "", []netip.Prefix(nil)
	switch s := o.Holds[0].Spec.(type) {
	case *kind.Spec:
		bare, mac, addrs = s.Bare, s.MAC, s.Addresses
	case *bridgeport.Spec:
		bare, mac, addrs = s.Bare, s.MAC, s.Addresses
	}
	if !o.Ordered || !m.Incomplete(o) || !bare || addrs != nil || mac == "" {
		t.Errorf("the plan is %+v", o)
	}
	change, _, err := m.Complete(t.Context(), o, record)
	nettest.Must(t, err, change(&o))
	var kinds []string
	for _, h := range o.Holds {
		kinds = append(kinds, h.Spec.Kind())
	}
	if got := fmt.Sprint(kinds); got != holds || m.Incomplete(o) || !m.NeedsPod(o) {
		t.Errorf("it holds %s, and needs the pod: %t", got, m.NeedsPod(o))
	}
	face, err := m.Interface(o)
	if nettest.Must(t, err); fmt.Sprint(face.Addresses) != "[10.7.0.2]" || face.MAC != mac {
		t.Errorf("its interface is %+v", face)
	}
	r, err := m.Result(o, record)
	if nettest.Must(t, err); len(r.IPs) != 1 || r.IPs[0].Address.String() != "10.7.0.2/24" || len(r.Routes) != 1 || r.Routes[0].GW.String() != "10.7.0.1" {
		t.Errorf("the result is %v", r)
	}
	for _, h := range m.In(ns.Ref{Path: "/elsewhere"}, "eth0", o).Holds {
		where := ""
		switch s := h.Spec.(type) {
		case *kind.Spec:
			where = s.Netns.Path
		case *kind.IPs:
			where = s.Netns.Path
		case *bridgeport.Spec:
			where = s.Netns.Path
		case *bridgeport.IPs:
			where = s.Netns.Path
		case *delegate.Lease:
			where = s.Netns.Path
		default:
			continue
		}
		if where != "/elsewhere" {
			t.Errorf("elsewhere, %s is in %s", h.Spec, where)
		}
	}
}
