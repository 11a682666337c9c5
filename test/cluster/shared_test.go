package cluster

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/berth-net/berth/api/v1alpha1"
	"github.com/berth-net/berth/internal/kube"
	"github.com/berth-net/berth/internal/nettest"
)

// sharedPools are a pool for all pods, and one for those that ask for it. A node has room for six pods in a block of IPv4, and for
// seven in one of IPv6.
const sharedPools = `apiVersion: berth.dev/v1alpha1
kind: IPPool
metadata: {name: blue}
spec:
  default: true
  preAllocate: 2
  ipv4: {cidrs: [10.244.200.0/24], blockSize: 29}
  ipv6: {cidrs: ["fd00:244:0:c8::/112"], blockSize: 125}
---
apiVersion: berth.dev/v1alpha1
kind: IPPool
metadata: {name: red}
spec:
  ipv4: {cidrs: [10.244.201.0/24], blockSize: 29}
  ipv6: {cidrs: ["fd00:244:0:c9::/112"], blockSize: 125}
`

// blue are the CIDRs of the pool that is for all pods.
var blue = []string{"10.244.200.0/24", "fd00:244:0:c8::/112"}

// share is what a node has of the pools.
func (c *control) share(node string) (out v1alpha1.NodeNetwork) {
	c.t.Helper()
	c.get(&out, berthPath+"nodenetworks/"+node)
	return out
}

// given returns how many blocks of a pool nodes have.
func (c *control) given(pool string) int64 {
	c.t.Helper()
	var p v1alpha1.IPPool
	c.get(&p, berthPath+"ippools/"+pool)
	return p.Status.Blocks.Given
}

// asks returns how many addresses of a pool a node asks for.
func (c *control) asks(n *node, pool string) int32 {
	c.t.Helper()
	for _, r := range c.share(n.name).Status.Requests {
		if r.Pool == pool {
			return r.Addresses
		}
	}
	return 0
}

// holds returns how many blocks of a pool a node holds.
func (c *control) holds(n *node, pool string) (blocks int) {
	c.t.Helper()
	for _, b := range c.share(n.name).Status.Held {
		if b.Pool == pool {
			blocks++
		}
	}
	return blocks
}

// wantPool checks that pods have addresses of a pool's blocks which their nodes hold.
func (c *cluster) wantPool(all []pod, pool string) {
	c.t.Helper()
	held := map[string][]v1alpha1.Block{}
	for _, n := range c.nodes {
		held[n.name] = c.share(n.name).Status.Held
	}
	for _, p := range all {
		for _, ip := range p.Status.PodIPs {
			addr := netip.MustParseAddr(ip.IP)
			if !slices.ContainsFunc(held[p.Spec.NodeName], func(b v1alpha1.Block) bool {
				return b.Pool == pool && netip.MustParsePrefix(b.CIDR).Contains(addr)
			}) {
				c.t.Errorf("pod %s on %s has the address %s, which is not of the pool %s that its node holds: %v",
					p.Metadata.Name, p.Spec.NodeName, ip.IP, pool, held[p.Spec.NodeName])
			}
		}
	}
}

// ofPools returns what the oracle sees of the pools on a node.
func (c *control) ofPools(n *node) (lines string) {
	c.t.Helper()
	for line := range strings.Lines(n.state().String()) {
		for _, part := range []string{"10.244.200.", "10.244.201.", "fd00:244:0:c8:", "fd00:244:0:c9:"} {
			if strings.Contains(line, part) {
				lines += line
				break
			}
		}
	}
	return lines
}

// showRefusal makes a pod that asks for a pool that is not there: `kubectl describe pod` says so in Berth's words.
func (c *cluster) showRefusal() {
	c.t.Helper()
	c.apply(`apiVersion: v1
kind: Pod
metadata: {name: lost, annotations: {berth.dev/pool: nonsense}}
spec:
  automountServiceAccountToken: false
  containers: [{name: pod, image: "` + imageName + `", imagePullPolicy: Never, command: [/pod, serve]}]
`)
	var said string
	nettest.Eventually(c.t, "the pod's Event", func() bool {
		said = c.mustKubectl("describe", "pod", "lost")
		return strings.Contains(said, "PoolRefused")
	})
	for _, part := range []string{"Berth gives the pod no address: ", `annotation berth.dev/pool of pod default/lost: the cluster has no IPPool "nonsense"; it has blue`, kube.Reporter} {
		if !strings.Contains(said, part) {
			c.t.Errorf("kubectl describe does not say %q:\n%s", part, said)
		}
	}
	c.mustKubectl("delete", "pod", "lost", "--timeout=60s")
}

// Three nodes, of which one is behind a router, share two pools, as in a cluster that somebody runs: the chart installs CRDs, operators
// and agents, and no node has a network before an operator has given it blocks. Nodes get blocks when their pods need them, which
// wait while no operator runs; an operator that is killed while it gives does no harm. Pods get addresses of the pool that they
// ask for, and each reaches each. Pods come and go while the agents are replaced, and each DEL succeeds. Blocks go back when pods
// go, also those of a node that is gone for ever; and when the pools go, nothing is left on any node.
func TestPools(t *testing.T) {
	c, helm := startEmpty(t, 3, 3)
	c.helm(helm, "install", "berth", chart(t), chartImage, "--set=pools.enabled=true", "--set-string=config.cooldown=1s,config.sweepInterval=5s", "--wait", "--timeout=60s")
	c.operatorsConfined()
	c.apply(sharedPools)
	c.waitWhole()
	empty := c.states()
	for _, n := range c.nodes {
		if lines := c.ofPools(n); !strings.Contains(lines, "10.244.200.") || !strings.Contains(lines, "fd00:244:0:c8:") {
			t.Errorf("%s has of the pools:\n%s", n.name, lines)
		}
		if blue, red := c.holds(n, "blue"), c.holds(n, "red"); blue != 2 || red != 0 {
			t.Errorf("without pods, %s holds %d blocks of blue and %d of red, want one of each family, and none", n.name, blue, red)
		}
	}

	const pods = 18
	c.scaleOperators(0)
	c.apply(deployment("web", pods, 0))
	for _, n := range c.nodes {
		nettest.Eventually(t, n.name+" to ask for more than a block has", func() bool { return c.asks(n, "blue") > 6 })
	}
	c.scaleOperators(2)
	nettest.Eventually(t, "an operator to give a block", func() bool { return c.given("blue") > 6 })
	c.killLeader()
	web := c.settle("with more than a block on each node", "web", pods)
	c.apply(strings.Replace(deployment("coat", 3, 0), "metadata: {labels: {app: coat}}", "metadata: {labels: {app: coat}, annotations: {berth.dev/pool: red}}", 1))
	coats := c.settle("of a pool that they ask for", "coat", 3)
	c.wantPool(web, "blue")
	c.wantPool(coats, "red")
	for _, n := range c.nodes {
		if blue, red := c.holds(n, "blue"), c.holds(n, "red"); blue != 4 || red != 2 {
			t.Errorf("with pods, %s holds %d blocks of blue and %d of red, want two and one of each family", n.name, blue, red)
		}
	}
	t.Log("\n" + c.mustKubectl("get", "ippools,nodenetworks", "-o", "wide"))
	c.reach(append(web, coats...))

	c.replaceAgents()
	c.reach(append(c.pods("web"), coats...))
	c.mustKubectl("delete", "deployment", "web", "coat", "--cascade=foreground", "--timeout=60s")
	nettest.Eventually(t, "blocks to go back", func() bool { return c.given("blue") == 6 && c.given("red") == 0 })
	c.nothingLeft(empty)
	c.noDELFailed()
	c.showRefusal()
	for _, n := range c.nodes {
		n.agentConfined()
		n.lacksNothing()
	}

	c.reach(c.deploy("web", 6, 0))
	far := c.nodes[2]
	gone(c, far)
	c.nodes = c.nodes[:2]
	nettest.Eventually(t, "the blocks of a node that is gone to go back", func() bool { return c.given("blue") == 4 })
	c.replaceOperators()
	c.lacksNoRight()

	c.mustKubectl("delete", "deployment", "web", "--cascade=foreground", "--timeout=60s")
	c.endPools()
	for _, n := range c.nodes {
		c.mustKubectl("delete", "node", n.name)
	}
	nettest.Eventually(t, "the nodes' objects to be gone", func() bool { return len(c.list(berthPath+"nodenetworks")) == 0 })
}
