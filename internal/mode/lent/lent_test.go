package lent_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/cni/netconf"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/delegate"
	"github.com/berth-net/berth/internal/kinds/link"
	"github.com/berth-net/berth/internal/mode/lent"
	"github.com/berth-net/berth/internal/mode/routed"
	"github.com/berth-net/berth/internal/nettest"
)

// pools are a pool of 10.88.0.0/24.
type pools struct{}

func (pools) CIDRs(string) []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix("10.88.0.0/24")}
}
func (pools) PoolOf(a netip.Addr) string {
	if netip.MustParsePrefix("10.88.0.0/24").Contains(a) {
		return "blue"
	}
	return ""
}

func (pools) Segment(string) *ipam.Segment { return nil }
func (pools) PoolsWith(bool) []string      { return nil }

// links finds nothing wrong in any pod.
type links struct{ routed.Links }

func (links) VerifyPodCeded(context.Context, hold.Hold, rtnl.Families) error { return nil }

func newMode(check error) *lent.Mode {
	base := routed.New(routed.Options{
		Instance: "aaaaaaaaaa", Pools: pools{}, Links: links{}, MTU: func() int { return 1500 }, Lacks: func() nft.Parts { return 0 },
		Claim: func(context.Context, string, []netip.Addr) (ipam.Claim, error) {
			return ipam.Claim{V4: netip.MustParseAddr("10.88.0.2")}, nil
		},
		Unclaim: func(ipam.Claim) {},
		ClaimPorts: func(context.Context, hold.ID, []nft.Mapping) (func(), error) {
			return nil, errors.New("no port is free")
		},
	})
	return lent.New(base, lent.Options{
		Run: "run", PoolOf: pools{}.PoolOf, Check: func(context.Context, *delegate.Spec) error { return check },
		Reached: func(all []netip.Addr) []netip.Addr {
			return slices.DeleteFunc(slices.Clone(all), func(a netip.Addr) bool { return a != netip.MustParseAddr("192.0.2.1") })
		},
	})
}

var record = attachment.Record{Key: attachment.Key{Network: "net", ContainerID: "c", Ifname: "eth0"}, Netns: ns.Ref{Path: "/run/netns/c"}, Mode: "routed"}

// planned returns what Plan makes of a configuration with these keys, once its plugin has given addresses.
func planned(t *testing.T, m *lent.Mode, keys string, given ...string) hold.Owner {
	t.Helper()
	c, bad := netconf.Parse([]byte(`{"cniVersion":"1.0.0","name":"net","type":"berth-cni"` + keys + `}`))
	if bad != nil {
		t.Fatal(bad)
	}
	nettest.Must(t, m.Fit(record, c))
	o, _, err := m.Plan(t.Context(), hold.NewID(), record, c)
	nettest.Must(t, err)
	h, _ := o.Find(delegate.IPAMKind)
	if s, ok := h.Spec.(*delegate.IPAM); ok {
		var ips []string
		for _, a := range given {
			ips = append(ips, fmt.Sprintf(`{"address":%q}`, a))
		}
		s.Done, s.Result = true, `{"cniVersion":"1.0.0","ips":[`+strings.Join(ips, ",")+`],"dns":{"domain":"lent.test"}}`
		o.Names = s.Names()
	}
	return o
}

const byPlugin = `,"ipam":{"type":"host-local"}`

// Without an IPAM plugin a plan is the base's, and whole. With one, it is complete once Complete has changed it: then it has the base's names and holds
// for the plugin's addresses, behind what the plugin has given, and the plugin's DNS.
func TestComplete(t *testing.T) {
	m := newMode(nil)
	if o := planned(t, m, ""); m.Incomplete(o) || len(o.Names) != 1 {
		t.Errorf("without an IPAM plugin: %v, incomplete %t", o, m.Incomplete(o))
	}
	o := planned(t, m, byPlugin, "10.9.0.2/24", "fd00:9::2/64")
	if len(o.Holds) != 1 || !m.Incomplete(o) || m.VerifyPod(t.Context(), o) != nil {
		t.Errorf("the plan is %v", o)
	}
	if _, err := m.Result(o, record); err == nil || !strings.Contains(err.Error(), "incomplete") {
		t.Errorf("the result of an incomplete attachment: %v", err)
	}
	change, _, err := m.Complete(t.Context(), o, record)
	nettest.Must(t, err, change(&o))
	l, _ := o.Find(link.KindName)
	if m.Incomplete(o) || len(o.Names) != 2 || o.Holds[0].Spec.Kind() != delegate.IPAMKind || fmt.Sprint(l.Spec.(*link.Spec).Addresses) != "[10.9.0.2 fd00:9::2]" {
		t.Errorf("the owner is %v", o)
	}
	r, err := m.Result(o, record)
	nettest.Must(t, err)
	if len(r.IPs) != 2 || r.DNS.Domain != "lent.test" {
		t.Errorf("the result is %v", r)
	}
	rec := record
	rec.DNS = types.DNS{Domain: "own.test"}
	if r, err = m.Result(o, rec); err != nil || r.DNS.Domain != "own.test" {
		t.Errorf("with DNS of its own: %v, %v", r, err)
	}
	moved := m.In(ns.Ref{Path: "/elsewhere"}, "net1", o)
	h, _ := moved.Find(delegate.IPAMKind)
	if s := h.Spec.(*delegate.IPAM); s.Netns.Path != "/elsewhere" || s.Ifname != "net1" || o.Holds[0].Spec.(*delegate.IPAM).Ifname != "eth0" {
		t.Errorf("elsewhere the plugin gets %+v", s)
	}
	for check, want := range map[error]error{nil: nil, types.NewError(100, "no such reservation", ""): hold.ErrChanged} {
		if err := newMode(check).VerifyPod(t.Context(), o); !errors.Is(err, want) {
			t.Errorf("when the plugin says %v: %v", check, err)
		}
	}
	away := errors.New("no runner")
	if err := newMode(away).VerifyPod(t.Context(), o); !errors.Is(err, away) || errors.Is(err, hold.ErrChanged) {
		t.Errorf("without a runner: %v", err)
	}
}

// Complete refuses addresses that a pod cannot have, and names the plugin and who has the address.
func TestUnusable(t *testing.T) {
	m := newMode(nil)
	for want, c := range map[string]struct {
		keys  string
		given []string
	}{
		"host-local gives no address": {},
		"host-local gives [10.9.0.2 10.9.0.3]; expected at most one of each family": {given: []string{"10.9.0.2/24", "10.9.0.3/24"}},
		"host-local gives 224.0.0.1; expected an address that a pod can have":       {given: []string{"224.0.0.1/24"}},
		"host-local gives fe80::1; expected an address that a pod can have":         {given: []string{"fe80::1/64"}},
		"host-local gives 10.88.0.7, which is an address of pool blue":              {given: []string{"10.88.0.7/24"}},
		"host-local gives 192.0.2.1, which somebody else on this node has":          {given: []string{"192.0.2.1/24"}},
		"mtu is 1000; IPAM plugin host-local has IPv6":                              {`,"mtu":1000`, []string{"fd00:9::2/64"}},
		"hostIP is fd00::1; IPAM plugin host-local has no addresses of its family":  {`,"runtimeConfig":{"portMappings":[{"hostPort":80,"containerPort":80,"hostIP":"fd00::1"}]}`, []string{"10.9.0.2/24"}},
		"no port is free": {`,"runtimeConfig":{"portMappings":[{"hostPort":80,"containerPort":80}]}`, []string{"10.9.0.2/24"}},
	} {
		_, _, err := m.Complete(t.Context(), planned(t, m, byPlugin+c.keys, c.given...), record)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// STATUS asks the IPAM plugin, if there is one, with the network's whole configuration.
func TestReady(t *testing.T) {
	m := newMode(nil)
	down := types.NewError(50, "no address is left", "")
	var asked []*delegate.Spec
	m.Status = func(_ context.Context, s *delegate.Spec) error { asked = append(asked, s); return down }
	for keys, want := range map[string]error{"": nil, byPlugin: down} {
		c, bad := netconf.Parse([]byte(`{"cniVersion":"1.1.0","name":"net","type":"berth-cni"` + keys + `}`))
		if bad != nil {
			t.Fatal(bad)
		}
		if err := m.Ready(t.Context(), c); !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", keys, err, want)
		}
	}
	if len(asked) != 1 || asked[0].Type != "host-local" || asked[0].Version != "1.1.0" || asked[0].Network != "net" || !strings.Contains(asked[0].Plugins[0], `"ipam":{"type":"host-local"}`) {
		t.Errorf("asked are %+v", asked)
	}
}
