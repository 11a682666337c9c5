package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/nettest"
)

// leads reports whether all of the node's ways to a CIDR go through a gateway; "": the node has no way there.
func (n *node) leads(cidr, gateway string) bool {
	n.t.Helper()
	ways := slices.DeleteFunc(n.ways(), func(w string) bool { return !strings.Contains(w, " "+cidr+" ") })
	if gateway == "" {
		return len(ways) == 0
	}
	return len(ways) == 1 && strings.Contains(ways[0], " via "+gateway+" ")
}

// claim makes a Node that nobody runs, with CIDRs for its pods, if there are any, and addresses that end in host. It returns the
// IPv4 one.
func (c *control) claim(name string, host int, cidrs []string) (address string) {
	c.t.Helper()
	spec := ""
	if len(cidrs) > 0 {
		spec = fmt.Sprintf(`"podCIDR": %q, "podCIDRs": ["%s"]`, cidrs[0], strings.Join(cidrs, `", "`))
	}
	c.apply(fmt.Sprintf(`{"apiVersion": "v1", "kind": "Node", "metadata": {"name": %q, "labels": {"kubernetes.io/os": "linux"}}, "spec": {%s}}`, name, spec))
	address = fmt.Sprintf("192.0.2.%d", host)
	c.mustKubectl("patch", "node", name, "--subresource=status", "--type=merge", "--patch="+fmt.Sprintf(
		`{"status": {"addresses": [{"type": "InternalIP", "address": %q}, {"type": "InternalIP", "address": "2001:db8::%d"}]}}`, address, host))
	return address
}

// newAddress gives a node other addresses while it runs, as DHCP does, and has its kubelet start anew: that tells the API server.
func (n *node) newAddress() {
	n.t.Helper()
	old4, old6 := n.address4(), n.address6()
	n.host += 100
	for _, command := range append([]string{
		"ip addr del " + old4 + "/24 dev eth0", "ip addr add " + n.address4() + "/24 dev eth0",
		"ip addr del " + old6 + "/64 dev eth0", "ip addr add " + n.address6() + "/64 dev eth0 nodad",
	}, defaults[0]) { // all IPv4 routes went with the address
		nettest.Run(n.t, n.net, command)
	}
	n.renew()
	n.kubelet.start()
	n.proxy.start()
}

// renew ends the programs that have to be told of the node's new addresses. The next ones are told.
func (n *node) renew() {
	n.kubelet.kill()
	n.proxy.kill()
	n.kubelet.args = n.kubeletArgs()
}

// The nodes of a cluster change one after the other, each in another way, and each pod reaches each other again. Addresses are of
// the nodes' CIDRs alone: with pools, TestOperatorFailures has two nodes claim one block, TestPools a node that is gone, and
// TestNodeReboots one that comes back; ways follow a node's addresses whatever its pods' addresses are of.
func TestNodesChange(t *testing.T) {
	c := startCluster(t, 3, 3)
	one, two, far := c.nodes[0], c.nodes[1], c.nodes[2]
	was := c.deploy("web", 6, 0)
	claimed(c, one, two)
	again(c, two, was)
	moved(c, one)
	before := c.cidrs(far.name)
	gone(c, far)
	replaced(c, far)
	for _, n := range []*node{one, two} {
		if what := nettest.Snapshot(t, n.net).Without("conntrack").String(); strings.Contains(what, before[0]) || strings.Contains(what, before[1]) {
			t.Errorf("%s still has something of %v:\n%s", n.name, before, what)
		}
	}
	c.mustKubectl("delete", "deployment", "web", "next", "--cascade=foreground", "--timeout=60s")
	for _, n := range c.nodes {
		nettest.Eventually(t, n.name+" to have released all attachments", n.released)
		n.berth("audit")
	}
}

// claimed: another Node claims the CIDRs of a node's pods. They lead to the node that had them first, whether or not an agent
// starts anew, until that Node is gone.
func claimed(c *cluster, one, two *node) {
	c.t.Helper()
	cidrs := c.cidrs(two.name)
	lead := func(when, to string) {
		c.t.Helper()
		nettest.Eventually(c.t, fmt.Sprintf("%s to lead from %s to %s, %s", cidrs[0], one.name, to, when), func() bool { return one.leads(cidrs[0], to) })
	}
	c.claim("claimer", 99, cidrs)
	const says = "node=claimer"
	one.berthd.until("the agent to say that a CIDR has two nodes", func() bool { return strings.Contains(one.berthd.words(), says) })
	two.berthd.until("the agent to say that another node claims its pods' CIDR", func() bool { return strings.Contains(two.berthd.words(), says) })
	lead("when there is a claimer", two.address4())
	one.berthd.kill()
	one.berthd.start()
	nettest.Eventually(c.t, "the next agent to say it, too", func() bool { return strings.Count(one.berthd.words(), says) > 1 })
	lead("after the agent's start", two.address4())
	c.mustKubectl("delete", "node", "claimer")
	c.reach(c.pods("web"))
	lead("when the claimer is gone", two.address4())
}

// again: a node's power is cut, and it comes back under its name with another network card and other addresses.
func again(c *cluster, n *node, was []pod) {
	c.t.Helper()
	n.cutPower()
	n.card, n.host = n.card+1, n.host+10
	n.kubelet.args = n.kubeletArgs()
	began := time.Now()
	n.start()
	c.reach(c.returned("web", was, n))
	c.t.Logf("each pod reaches each again %s after %s has come back with another MAC and address", time.Since(began).Round(10*time.Millisecond), n.name)
}

// moved: a node gets other addresses while its pods run.
func moved(c *cluster, n *node) {
	c.t.Helper()
	cidr := c.cidrs(n.name)[0]
	began := time.Now()
	n.newAddress()
	nettest.Eventually(c.t, "another node to lead to the new address", func() bool { return c.nodes[1].leads(cidr, n.address4()) })
	c.t.Logf("another node leads to the new address of %s after %s", n.name, time.Since(began).Round(10*time.Millisecond))
	nettest.Eventually(c.t, n.name+" to have its own ways again", func() bool { return len(n.ways()) == 4 })
	c.t.Logf("it has its own ways again after %s", time.Since(began).Round(10*time.Millisecond))
	nettest.Eventually(c.t, n.name+"'s tunnel to begin at its new address", func() bool {
		return strings.Contains(n.mustRun(found(c.t, "ip"), "-details", "link", "show", "type", "vxlan"), " local "+n.address4()+" ")
	})
	c.t.Logf("its own tunnel begins there after %s", time.Since(began).Round(10*time.Millisecond))
	c.reach(c.pods("web"))
}

// gone: a machine is destroyed, and its Node deleted. The routes to it go, and its pods come elsewhere.
func gone(c *cluster, n *node) {
	c.t.Helper()
	n.cutPower()
	began := time.Now()
	c.mustKubectl("delete", "node", n.name)
	others := slices.DeleteFunc(slices.Clone(c.nodes), func(o *node) bool { return o == n })
	for _, o := range others {
		nettest.Eventually(c.t, o.name+" to have no way to "+n.name, func() bool { return len(o.ways()) == 2 })
		if what := nettest.Snapshot(c.t, o.net).Without("conntrack").String(); strings.Contains(what, n.address4()) {
			c.t.Errorf("%s still has something of %s:\n%s", o.name, n.address4(), what)
		}
		o.berth("audit")
	}
	c.t.Logf("the other nodes have forgotten %s %s after its Node was to be deleted", n.name, time.Since(began).Round(10*time.Millisecond))
	c.mustKubectl("delete", "pods", "--all-namespaces", "--field-selector=spec.nodeName="+n.name, "--force", "--grace-period=0")
	nettest.Eventually(c.t, "the pods to be ready elsewhere", func() bool {
		all := c.pods("web")
		return len(all) == 6 && !slices.ContainsFunc(all, func(p pod) bool { return !p.ready() || p.Spec.NodeName == n.name })
	})
	c.reach(c.pods("web"))
}

// replaced: a new machine takes the place of one that was destroyed, under its name and address.
func replaced(c *cluster, n *node) {
	c.t.Helper()
	for _, dir := range []string{"var/lib", "etc/cni", "opt/cni/bin"} {
		must(c.t, os.RemoveAll(filepath.Join(n.disk, dir)), os.MkdirAll(filepath.Join(n.disk, dir), 0o755))
	}
	n.card++
	began := time.Now()
	n.start()
	n.load(writeImage(c.t))
	n.berthd.until("berthd to serve", n.serves)
	n.berth("install")
	c.waitWhole()
	c.reach(append(c.deploy("next", 3, 0), c.pods("web")...))
	if len(ips(c.pods("next"), n.name)) != 2 {
		c.t.Errorf("none of the new pods is on %s", n.name)
	}
	c.t.Logf("a new machine has the place of %s, and pods that reach all others, after %s", n.name, time.Since(began).Round(10*time.Millisecond))
}
