package cluster

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// cutPower takes from the node what a power cut takes: all processes, all network namespaces, the cgroups of containers, and
// what lies in /run.
func (n *node) cutPower() {
	n.t.Helper()
	n.powerOff()
	nettest.Run(n.t, nil, "ip link del "+n.uplink())
	nettest.Delete(n.t, n.net)
	programs.RemoveCgroup(n.t, n.cgroup())
	run := filepath.Join(n.disk, "run")
	must(n.t, os.RemoveAll(run), os.Mkdir(run, 0o755))
}

// start starts a node whose power was cut, with the disk that it had.
func (n *node) start() {
	n.t.Helper()
	n.net = nettest.Node(n.t)
	programs.MakeCgroup(n.t, n.cgroup())
	n.boot()
	n.connect()
	n.berthd.start()
	n.containerd.start()
	n.waitContainerd()
	n.kubelet.start()
	n.proxy.start()
}

// uptime is what the node's clock counts since its boot.
func (n *node) uptime() time.Duration {
	n.t.Helper()
	first, _, _ := strings.Cut(n.mustRun(found(n.t, "cat"), "/proc/uptime"), " ")
	seconds, err := strconv.ParseFloat(first, 64)
	must(n.t, err)
	return time.Duration(seconds * float64(time.Second))
}

// ips returns the addresses of pods on a node.
func ips(all []pod, node string) (addrs []string) {
	for _, p := range all {
		for _, a := range p.Status.PodIPs {
			if p.Spec.NodeName == node {
				addrs = append(addrs, a.IP)
			}
		}
	}
	return addrs
}

// returned waits until all pods of an app that were on a node are ready there again, with other addresses than they had.
func (c *cluster) returned(app string, was []pod, n *node) (now []pod) {
	c.t.Helper()
	old := ips(was, n.name)
	nettest.Eventually(c.t, "the pods of "+n.name+" to come back", func() bool {
		now = c.pods(app)
		again := ips(now, n.name)
		return len(again) == len(old) && !slices.ContainsFunc(again, func(a string) bool { return slices.Contains(old, a) }) &&
			!slices.ContainsFunc(now, func(p pod) bool { return !p.ready() })
	})
	return now
}

// The power of a node is cut, while pods of it are being deleted. The node comes back with another boot id and clock: its pods get
// other sandboxes and other addresses, and reach all others and are reached, natively and through the tunnel, also if the node has got
// another network card. Nothing of the ways to it has changed on other nodes, and nothing is left of the pods that went.
func TestNodeReboots(t *testing.T) {
	c := startBothWays(t, 3, 3)
	near, far := c.nodes[0], c.nodes[2]
	for way := range c.ways() {
		c.reboots(far)
		if way == ofNodes { // packets to it take the same way whatever addresses are of
			c.reboots(near)
		}
	}
}

// reboots cuts a node's power, and starts it anew. A node on the segment gets another network card.
func (c *cluster) reboots(n *node) {
	c.t.Helper()
	empty := c.states()
	was := c.deploy("web", 6, 0)
	doomed := c.deploy("doomed", 3, 10*time.Second)
	c.mustKubectl("delete", "deployment", "doomed")
	nettest.Eventually(c.t, "the kubelet to tell the pod to end", func() bool { return n.ending(doomed) > 0 })
	n.cutPower()
	if !n.far {
		n.card++
	}
	began := time.Now()
	n.start()
	now := c.returned("web", was, n)
	c.t.Logf("the pods of %s are ready again %s after the power cut", n.name, time.Since(began).Round(10*time.Millisecond))
	c.found(n, now)
	c.t.Logf("the other nodes have found it %s after the power cut", time.Since(began).Round(10*time.Millisecond))
	c.reach(now)
	if up := n.uptime(); up > time.Since(began)+(bootAge+1)*time.Second {
		c.t.Errorf("%s is up for %s", n.name, up)
	}
	seen := c.object(n.name).Status.NodeInfo.BootID
	if id := n.mustRun(found(c.t, "cat"), "/proc/sys/kernel/random/boot_id"); strings.TrimSpace(id) != seen {
		c.t.Errorf("the boot's id is %q, and the API server has %q", id, seen)
	}
	c.mustKubectl("delete", "deployment", "web", "--cascade=foreground", "--timeout=60s")
	c.nothingLeft(empty)
}

// found waits until all other nodes reach the pods of a node. ARP tells them of another network card at once. Of IPv6 their kernels
// would keep the former card for up to 53 s, the time that a neighbour counts as reachable (45 s at most) and then probes (RFC 4861,
// 7.3.2): the agents have them ask anew when they hear of the boot.
func (c *cluster) found(n *node, all []pod) {
	c.t.Helper()
	for _, o := range c.nodes {
		for _, addr := range ips(all, n.name) {
			if o != n {
				nettest.Eventually(c.t, o.name+" to reach "+addr, func() bool { return o.answers(addr) != "" })
			}
		}
	}
}
