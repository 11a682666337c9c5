package cluster

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/berth-net/berth/api/v1alpha1"
	"github.com/berth-net/berth/internal/kube"
	"github.com/berth-net/berth/internal/nettest"
)

// definition is a CustomResourceDefinition of one of Berth's kinds, which checks nothing.
func definition(kind string) string {
	return fmt.Sprintf(`---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[1]ss.berth.dev}
spec:
  group: berth.dev
  scope: Cluster
  names: {kind: %[2]s, plural: %[1]ss, singular: %[1]s}
  versions:
  - name: v1alpha1
    served: true
    storage: true
    subresources: {status: {}}
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`, strings.ToLower(kind), kind)
}

// handed is a NodeNetwork with one block of each family of the pool blue, as an operator makes it.
func handed(n *node, withdrawn bool) string {
	return fmt.Sprintf(`---
apiVersion: berth.dev/v1alpha1
kind: NodeNetwork
metadata: {name: %[1]s}
spec: {blocks: [{pool: blue, cidr: %[2]s, withdrawn: %[4]t}, {pool: blue, cidr: "%[3]s", withdrawn: %[4]t}]}
`, n.name, blocks(n)[0], blocks(n)[1], withdrawn)
}

// blocks are the blocks that a node is handed. They are not of its Node's podCIDRs.
func blocks(n *node) []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix(fmt.Sprintf("10.244.200.%d/26", 64*n.number)), netip.MustParsePrefix(fmt.Sprintf("fd00:244:0:c8::%x/122", 64*n.number)),
	}
}

func (c *control) share(n *node) (out v1alpha1.NodeNetwork) {
	c.t.Helper()
	c.get(&out, "nodenetwork", n.name)
	return out
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

// The cluster has a pool of its own, of which each node is handed blocks. Pods get addresses of these, and each reaches each. A real
// API server refuses what an agent writes to an old version. Blocks that are withdrawn are given back when the last pod is
// gone, and nothing is left.
func TestPoolsByHand(t *testing.T) {
	c := startBare(t, 2)
	c.apply(definition("IPPool") + definition("NodeNetwork"))
	c.mustKubectl("wait", "--for=condition=Established", "crd/ippools.berth.dev", "crd/nodenetworks.berth.dev", "--timeout=30s")
	manifest := "apiVersion: berth.dev/v1alpha1\nkind: IPPool\nmetadata: {name: blue}\nspec: {default: true, ipv4: {cidrs: [10.244.200.0/24]}, ipv6: {cidrs: [\"fd00:244:0:c8::/112\"]}}\n"
	for _, n := range c.nodes {
		manifest += handed(n, false)
	}
	nettest.Eventually(t, "the API server to know the new kinds", func() bool { _, err := c.kubectl("get", "ippools,nodenetworks"); return err == nil })
	c.apply(manifest)
	for _, n := range c.nodes {
		n.pooled = true
		n.startBerth(c.control)
	}
	c.waitWhole()
	empty := c.states()
	all := c.deploy("web", 6, 0)
	for _, p := range all {
		for i, ip := range p.Status.PodIPs {
			n := c.nodes[0]
			if p.Spec.NodeName != n.name {
				n = c.nodes[1]
			}
			if !blocks(n)[i].Contains(netip.MustParseAddr(ip.IP)) {
				t.Errorf("pod %s on %s has the address %s, want one of %v", p.Metadata.Name, n.name, ip.IP, blocks(n))
			}
		}
	}
	c.reach(all)
	for _, n := range c.nodes {
		if held := c.share(n).Status.Held; len(held) != 2 {
			t.Errorf("%s says it holds %v", n.name, held)
		}
	}
	c.mustKubectl("delete", "deployment", "web", "--cascade=foreground", "--timeout=60s")
	c.showRefusal()
	c.nothingLeft(empty)

	first := c.nodes[0]
	c.apply(handed(first, true))
	nettest.Eventually(t, "the blocks to be given back", func() bool { return len(c.share(first).Status.Held) == 0 })
	if routes := nettest.Snapshot(t, first.net).Only("route").String(); strings.Contains(routes, "unreachable "+blocks(first)[0].String()) {
		t.Errorf("the route of a block that was given back is left:\n%s", routes)
	}
	if out, err := first.run(first.bin+"/berth", "audit"); err != nil {
		t.Error(out, err)
	}
}
