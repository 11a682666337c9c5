package cluster

import (
	"iter"
	"slices"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
)

// addressing is where pods' addresses come from, as berthd.yaml names it.
type addressing string

const (
	ofNodes addressing = "podCIDRs" // each node has CIDRs of its own
	ofPools addressing = "pools"    // nodes get blocks of pools that they share
)

// startBothWays is startCluster for a test that ranges over ways.
func startBothWays(t *testing.T, nodes int, far ...int) *cluster {
	t.Helper()
	c := startBare(t, nodes, far...)
	c.shortRests()
	c.startBerth()
	return c
}

// shortRests has addresses rest for a second only, so that what pods' addresses are of can change at once.
func (c *cluster) shortRests() {
	for _, n := range c.nodes {
		n.cooldown = "1s"
	}
}

// ways has pods get addresses of their nodes' CIDRs, and then of pools that the nodes share. The body is to leave no pods. In the
// end the pools are deleted, and nothing of them is left.
func (c *cluster) ways() iter.Seq[addressing] {
	return func(yield func(addressing) bool) {
		c.t.Logf("addresses are of %s", ofNodes)
		if !yield(ofNodes) {
			return
		}
		c.startPools()
		c.t.Logf("addresses are of %s", ofPools)
		if yield(ofPools) {
			c.sweep("1s")
			c.endPools()
		}
	}
}

// startPools has the nodes share pools. They have nothing of their own CIDRs any more when it returns.
func (c *cluster) startPools() {
	c.t.Helper()
	c.installOperator()
	c.operator = c.startOperator(0, "--leader-elect=false")
	c.apply(sharedPools)
	var former []string
	for _, n := range c.nodes {
		former = append(former, c.cidrs(n.name)...)
		n.pooled = true
	}
	c.sweep("1s")
	for _, n := range c.nodes {
		nettest.Eventually(c.t, n.name+" to have let go of the nodes' CIDRs", func() bool { return !n.has(former) })
	}
	c.sweep("")
	c.waitWhole()
}

// sweep has the agents sweep so often; "": as often as by default, which is once in half a minute. A sweep lets go of what has drained.
func (c *cluster) sweep(interval string) {
	c.t.Helper()
	for _, n := range c.nodes {
		n.sweeps = interval
	}
	c.reconfigure()
}

// endPools deletes the pools, and checks that no node has anything of them.
func (c *cluster) endPools() {
	c.t.Helper()
	c.mustKubectl("delete", "ippools", "--all", "--timeout=60s")
	for _, n := range c.nodes {
		nettest.Eventually(c.t, n.name+" to have nothing of the pools", func() bool { return c.ofPools(n) == "" })
		n.berth("audit")
		if s := c.share(n.name); len(s.Spec.Blocks)+len(s.Status.Held) > 0 {
			c.t.Errorf("%s has %v and holds %v of pools that are gone", n.name, s.Spec.Blocks, s.Status.Held)
		}
	}
}

// reconfigure starts all agents anew, with the configuration that their nodes are to have now.
func (c *cluster) reconfigure() {
	c.t.Helper()
	c.each(func(n *node) {
		n.configure()
		n.berthd.kill()
		n.berthd.start()
		n.berthd.until("berthd to serve", n.serves)
	})
}

// has reports whether the node has routes of one of these CIDRs.
func (n *node) has(cidrs []string) bool {
	n.t.Helper()
	routes := nettest.Snapshot(n.t, n.net).Only("route").String()
	return slices.ContainsFunc(cidrs, func(cidr string) bool { return strings.Contains(routes, " "+cidr+" ") })
}
