package cluster

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/nettest"
)

// links returns the beginnings of the names of the links by which the node leads to others' pods, sorted: "eth0" is the uplink, and
// "bert" the tunnel.
func (n *node) links() string {
	n.t.Helper()
	var links []string
	for _, w := range n.ways() {
		name := device(w)
		links = append(links, name[:min(4, len(name))]) // ip(8) says "if7" of a link that goes just now
	}
	slices.Sort(links)
	return strings.Join(links, " ")
}

// device returns the name of the link that a route leads to.
func device(route string) string {
	f := strings.Fields(route)
	return f[slices.Index(f, "dev")+1]
}

// route has all nodes route in this way, and returns when they lead to all others by these links.
func (c *cluster) route(routing, links string) {
	c.t.Helper()
	for _, n := range c.nodes {
		n.routing = routing
	}
	c.reconfigure()
	c.waitWhole()
	for _, n := range c.nodes {
		nettest.Eventually(c.t, n.name+" to lead to others by "+links, func() bool { return n.links() == links })
		nettest.Eventually(c.t, n.name+" to have a tunnel unless it routes natively alone", func() bool {
			return (n.mustRun(found(c.t, "ip"), "link", "show", "type", "vxlan") != "") == (routing != "native")
		})
	}
}

// Pods run on three nodes of one segment, and each reaches each other by both families and is seen by its own address: wherever
// addresses come from, and whichever way packets take between nodes, also with packets of the size of the MTU. When they are gone,
// nothing is left of them on any node but the ways to other nodes.
func TestPods(t *testing.T) {
	c := startBothWays(t, 3)
	for range c.ways() {
		for _, way := range []struct{ routing, links string }{
			{"auto", "eth0 eth0 eth0 eth0"}, {"native", "eth0 eth0 eth0 eth0"}, {"vxlan", "bert bert bert bert"},
		} {
			began := time.Now()
			c.route(way.routing, way.links)
			empty := c.states()
			all := c.deploy("web", 6, 0)
			if few := some(all, 2); len(few) != len(all) {
				t.Errorf("the pods are not spread over the nodes: %v", all)
			}
			c.reach(all)
			c.mustKubectl("delete", "deployment", "web", "--cascade=foreground", "--timeout=60s")
			c.nothingLeft(empty)
			for _, n := range c.nodes {
				if links := n.links(); links != way.links {
					t.Errorf("%s leads to two others by %s, not by %s", n.name, links, way.links)
				}
			}
			t.Logf("%s: %s", way.routing, time.Since(began).Round(10*time.Millisecond))
		}
	}
}

// Two nodes are on one segment, and the third is behind a router, which knows nothing of pods. Packets between the two go
// natively, those to and from the third through the tunnel, and each pod reaches each other by both families, also while no agent
// runs, and so do Services.
func TestRouter(t *testing.T) {
	c := startBothWays(t, 3, 3)
	for range c.ways() {
		empty := c.states()
		for i, want := range []string{"bert bert eth0 eth0", "bert bert eth0 eth0", "bert bert bert bert"} {
			if links := c.nodes[i].links(); links != want {
				t.Errorf("%s leads to others by %s, not by %s", c.nodes[i].name, links, want)
			}
		}
		all := c.deploy("web", 6, 0)
		c.reach(all)
		c.nodesReach(all)
		c.servicesLead(all)
		c.tunnelStays(all)
		c.mustKubectl("delete", "deployment", "web", "--cascade=foreground", "--timeout=60s")
		c.nothingLeft(empty)
	}
}

// nodesReach has the node behind the router ask each pod, as the kubelet of another node, or the API server, may have to.
func (c *cluster) nodesReach(all []pod) {
	c.t.Helper()
	far := c.nodes[2]
	for _, p := range all {
		for _, a := range p.Status.PodIPs {
			if said := far.answers(a.IP); !strings.HasPrefix(said, p.Metadata.Name+" ") {
				c.t.Errorf("the node %s does not reach pod %s at %s on %s: %q", far.name, p.Metadata.Name, a.IP, p.Spec.NodeName, said)
			}
		}
	}
}

// tunnelStays: pods reach each other while no agent runs (flannel #636). Somebody takes the tunnel away, and the agent puts it back.
func (c *cluster) tunnelStays(all []pod) {
	c.t.Helper()
	for _, n := range c.nodes {
		n.berthd.kill()
		nettest.Run(c.t, n.net, "ip neighbour flush all") // of which the kernel keeps those that are permanent
	}
	c.reach(all)
	for _, n := range c.nodes {
		n.berthd.start()
	}
	far := c.nodes[2]
	nettest.Run(c.t, far.net, "ip link del "+device(far.ways()[0]))
	nettest.Eventually(c.t, "a sweep to have put the tunnel back", func() bool { return far.links() == "bert bert bert bert" })
	c.reach(all)
}
