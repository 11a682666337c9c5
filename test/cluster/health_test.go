package cluster

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/nettest"
)

// responderLink is the node's end of a responder's link, as the oracle shows it.
var responderLink = regexp.MustCompile(`(?m)^link (\S+) .* _health/responder/eth0`)

// differs says in what two states differ, but for the links of the node's responder: each agent makes one of its own.
func differs(a, b nettest.State) string {
	var diff strings.Builder
	names := responderLink.FindAllStringSubmatch(a.String()+"\n"+b.String(), -1)
	for line := range strings.Lines(a.Diff(b)) {
		if !slices.ContainsFunc(names, func(m []string) bool { return strings.Contains(line, m[1]) }) {
			diff.WriteString(line)
		}
	}
	return diff.String()
}

// health returns what the node's agent says of the other nodes, and the command's exit code: whether all are well.
func (n *node) health() (h api.ClusterHealth, well bool) {
	n.t.Helper()
	out, err := n.run(filepath.Join(n.bin, "berth"), "health", "-o", "json")
	if json.Unmarshal([]byte(out), &h) != nil {
		h.Error = out
	}
	return h, err == nil
}

// reaches says how a node reaches the others: "NODE PATH FAMILY", with "!" in front if it does not, and "?" if it has not tried.
func (n *node) reaches() (ways []string) {
	n.t.Helper()
	h, _ := n.health()
	if h.Error != "" {
		return []string{h.Error}
	}
	for _, p := range h.Probes {
		way := p.Node + " " + p.Path + " " + p.Family
		switch {
		case p.Tried.IsZero():
			way = "?" + way
		case !p.Reachable:
			way = "!" + way
		}
		ways = append(ways, way)
	}
	slices.Sort(ways)
	return ways
}

// waysTo returns all ways to nodes.
func waysTo(nodes ...*node) (ways []string) {
	for _, n := range nodes {
		for _, path := range []string{api.PathNode, api.PathPod} {
			for _, family := range []string{"IPv4", "IPv6"} {
				ways = append(ways, n.name+" "+path+" "+family)
			}
		}
	}
	slices.Sort(ways)
	return ways
}

// wantReached waits until each node reaches all others by all ways.
func (c *cluster) wantReached() {
	c.t.Helper()
	for _, n := range c.nodes {
		want := waysTo(slices.DeleteFunc(slices.Clone(c.nodes), func(o *node) bool { return o == n })...)
		var have []string
		for end := time.Now().Add(nettest.Deadline); ; time.Sleep(100 * time.Millisecond) {
			if have = n.reaches(); slices.Equal(have, want) {
				break
			}
			if time.Now().After(end) {
				c.t.Fatalf("%s reaches %q, want %q", n.name, have, want)
			}
		}
		if _, well := n.health(); !well {
			c.t.Errorf("%s reaches all nodes, and berth health fails", n.name)
		}
	}
}

// responder returns the addresses of a node's responder, as the cluster has them.
func (c *control) responder(n *node) (addrs []string) {
	c.t.Helper()
	var o struct {
		Metadata struct{ Annotations map[string]string }
	}
	c.get(&o, "node", n.name)
	return []string{o.Metadata.Annotations["berth.dev/ipv4-health-ip"], o.Metadata.Annotations["berth.dev/ipv6-health-ip"]}
}

// Each of three nodes reaches the two others, of which one is behind a router, by all ways. A link that is cut shows, on both
// ends and nowhere else. A node keeps the addresses of its responder when its agent is killed, and when all that the
// agent knew is lost. A node whose configuration wants no responder has nothing of it, and others do not probe it by pods.
func TestHealth(t *testing.T) {
	c := startBare(t, 3, 3)
	for _, n := range c.nodes {
		n.healthConfig = ", health: {interval: 1s}"
		n.startBerth(c.control)
	}
	c.waitWhole()
	c.wantReached()
	for _, n := range c.nodes {
		h, _ := n.health()
		for _, p := range h.Probes {
			if p.Latency <= 0 || p.Latency > time.Second {
				t.Errorf("%s has an answer from %s after %s", n.name, p.Node, p.Latency)
			}
		}
		n.berth("audit")
		t.Logf("%s", n.berth("health"))
	}

	cut := c.nodes[1]
	nettest.Run(t, nil, "ip link set u"+cut.name+" down")
	for _, n := range c.nodes {
		want := []string{}
		for _, o := range c.nodes {
			for _, w := range waysTo(o) {
				switch {
				case o == n:
				case o == cut || n == cut:
					want = append(want, "!"+w)
				default:
					want = append(want, w)
				}
			}
		}
		slices.Sort(want)
		var have []string
		nettest.Eventually(t, fmt.Sprintf("%s to reach as %q", n.name, want), func() bool { have = n.reaches(); return slices.Equal(have, want) })
		if _, well := n.health(); well {
			t.Errorf("berth health is well on %s, which reaches %q", n.name, have)
		}
	}
	nettest.Run(t, nil, "ip link set u"+cut.name+" up")
	c.wantReached()

	n := c.nodes[0]
	was := c.responder(n)
	n.berthd.kill()
	n.berthd.start()
	c.wantReached()
	n.berth("audit")
	if now := c.responder(n); !slices.Equal(now, was) {
		t.Errorf("the responder has %v, and had %v before the agent was killed", now, was)
	}

	n.berthd.kill()
	n.mustRun(filepath.Join(n.bin, "berthd"), "--remove")
	nettest.Eventually(t, "the responder's link to be gone", func() bool { return !responderLink.MatchString(nettest.Snapshot(t, n.net).String()) })
	n.mustRun(found(t, "rm"), "-rf", "/var/lib/berth", "/run/berth")
	n.berthd.start()
	c.wantReached()
	n.berth("audit")
	if h, _ := n.health(); !slices.Equal(h.Addresses, was) || !slices.Equal(c.responder(n), was) {
		t.Errorf("the responder has %v, the cluster says %v, and it had %v before all was lost", h.Addresses, c.responder(n), was)
	}

	n.berthd.kill()
	n.healthConfig = ", health: {enabled: false}"
	n.configure()
	n.berthd.start()
	nettest.Eventually(t, "the node to tell of no responder", func() bool { return strings.Join(c.responder(n), "") == "" })
	other := c.nodes[1]
	want := slices.DeleteFunc(waysTo(n, c.nodes[2]), func(w string) bool { return strings.HasPrefix(w, n.name+" pod") })
	nettest.Eventually(t, "others to probe only the node itself", func() bool { return slices.Equal(other.reaches(), want) })
	if s := nettest.Snapshot(t, n.net).String(); responderLink.MatchString(s) {
		t.Errorf("a responder is left:\n%s", s)
	}
	n.berth("audit")
}
