package config

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/nettest"
)

func TestAddresses(t *testing.T) {
	for text, want := range map[string]string{
		"kubernetes: {node: n}":                         AddressesPodCIDRs,
		"kubernetes: {node: n, addresses: podCIDRs}":    AddressesPodCIDRs,
		"kubernetes: {node: n, addresses: pools}":       AddressesPools,
		"\nkubernetes: {node: n, addresses: true}":      "!line 2: kubernetes.addresses: \"true\" is neither podCIDRs nor pools",
		"kubernetes: {node: n, addresses: [pools]}":     "!want a word",
		"kubernetes: {node: n, adresses: pools}":        "!unknown key \"adresses\"",
		onePool + "kubernetes: {node: n, addresses: p}": "!is neither podCIDRs nor pools",
	} {
		c, err := Load(write(t, text), Flags{})
		if part, wrong := strings.CutPrefix(want, "!"); wrong {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %v, want %q", text, err, part)
			}
		} else if err != nil || c.Kubernetes.Addresses != want || c.Kubernetes.FromPools() != (want == AddressesPools) {
			t.Errorf("%s: %+v, %v", text, c.Kubernetes, err)
		}
	}
}

// What the cluster gives makes pools that come before the file's, the default pool first, and rest as long as the file says.
func TestWith(t *testing.T) {
	c, err := Load(write(t, "cooldown: 7s\nkubernetes: {node: n, addresses: pools}\npools: [{name: own, cidrs: [10.0.0.0/24], cooldown: 3s}]"), Flags{})
	nettest.Must(t, err)
	lease := func(pool, cidr string) Lease { return Lease{pool, netip.MustParsePrefix(cidr)} }
	g := Given{Default: "red", Leases: []Lease{lease("red", "10.61.0.0/26"), lease("blue", "10.60.0.0/26"), lease("blue", "fd00::/122"), lease("blue", "10.60.0.64/26")}}
	g.Sort()
	want := []ipam.PoolConfig{
		pool("red", 7*time.Second, "10.61.0.0/26"), pool("blue", 7*time.Second, "10.60.0.0/26", "10.60.0.64/26", "fd00::/122"), pool("own", 3*time.Second, "10.0.0.0/24"),
	}
	if have := c.With(g).Pools; !reflect.DeepEqual(have, want) {
		t.Errorf("pools %+v, want %+v", have, want)
	}
	if have := c.With(Given{Default: "red"}); have != c {
		t.Errorf("without leases the pools are %+v", have.Pools)
	}
	node := c.With(NodeGiven([]netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}))
	if !reflect.DeepEqual(node.Pools[0], pool(NodePool, 7*time.Second, "10.244.1.0/24")) {
		t.Errorf("pools %+v", node.Pools)
	}
}
