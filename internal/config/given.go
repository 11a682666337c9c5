package config

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/berth-net/berth/internal/ipam"
)

// NodePool is the pool of the CIDRs that the cluster has given to the node (AddressesPodCIDRs). No file and no
// flag names such a pool.
const NodePool = "node"

// Lease is a CIDR that the cluster has given to the node: one of its pods' CIDRs (NodePool), or a block of a cluster's pool.
type Lease struct {
	Pool string
	CIDR netip.Prefix
}

// Given is what the cluster has given to the node's pods.
type Given struct {
	Leases  []Lease
	Default string // the pool of pods for which nobody can say that they want another one; "": none
}

// NodeGiven is what a cluster gives by Node.spec.podCIDRs.
func NodeGiven(cidrs []netip.Prefix) Given {
	g := Given{Default: NodePool}
	for _, c := range cidrs {
		g.Leases = append(g.Leases, Lease{NodePool, c})
	}
	return g
}

// Is reports whether g and o say the same.
func (g Given) Is(o Given) bool { return g.Default == o.Default && slices.Equal(g.Leases, o.Leases) }

// Sort puts the leases in an order that depends on nothing else: by pool, and then by CIDR.
func (g Given) Sort() {
	slices.SortFunc(g.Leases, func(a, b Lease) int { return cmp.Or(strings.Compare(a.Pool, b.Pool), a.CIDR.Compare(b.CIDR)) })
}

// Pools returns the pools that have leases, the default pool first.
func (g Given) Pools() []ipam.PoolConfig {
	var pools []ipam.PoolConfig
	for _, l := range g.Leases {
		i := slices.IndexFunc(pools, func(p ipam.PoolConfig) bool { return p.Name == l.Pool })
		switch {
		case i >= 0:
			pools[i].CIDRs = append(pools[i].CIDRs, l.CIDR)
		case l.Pool == g.Default:
			pools = slices.Insert(pools, 0, ipam.PoolConfig{Name: l.Pool, CIDRs: []netip.Prefix{l.CIDR}})
		default:
			pools = append(pools, ipam.PoolConfig{Name: l.Pool, CIDRs: []netip.Prefix{l.CIDR}})
		}
	}
	return pools
}

// With returns the configuration with the pools that the cluster has given to the node. They come first, so that pods get
// addresses of them by default.
func (c *Config) With(g Given) *Config {
	if c.Kubernetes == nil || len(g.Leases) == 0 {
		return c
	}
	with := *c
	with.Pools = g.Pools()
	for i := range with.Pools {
		with.Pools[i].Cooldown = c.Cooldown
	}
	with.Pools = append(with.Pools, c.Pools...)
	return &with
}

// FromPools reports whether the node's pods get addresses of the cluster's pools.
func (k *Kubernetes) FromPools() bool { return k != nil && k.Addresses == AddressesPools }
