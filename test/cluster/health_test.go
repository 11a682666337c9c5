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

// reaches says how a node reaches the others: "NODE PATH FAMILY", with "!" in front if it does not, and "?" if it has not tried. well is
// whether the command says that all are well.
func (n *node) reaches() (ways []string, well bool) {
	n.t.Helper()
	h, well := n.health()
	if h.Error != "" {
		return []string{h.Error}, well
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
	return ways, well
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
		well := false
		for end := time.Now().Add(nettest.Deadline); !slices.Equal(have, want); time.Sleep(100 * time.Millisecond) {
			if time.Now().After(end) {
				c.t.Fatalf("%s reaches %q, want %q", n.name, have, want)
			}
			have, well = n.reaches()
		}
		if !well {
			c.t.Errorf("%s reaches all nodes, and berth health fails", n.name)
		}
	}
}

// responder returns the addresses of a node's responder, as the cluster has them.
func (c *control) responder(n *node) (addrs []string) {
	c.t.Helper()
	notes := c.object(n.name).Metadata.Annotations
	return []string{notes["berth.dev/ipv4-health-ip"], notes["berth.dev/ipv6-health-ip"]}
}

// probing has nodes probe each other once a second.
const probing = ", health: {interval: 1s}"

// Each of three nodes reaches the two others, of which one is behind a router, by all ways. A link that is cut shows, on both
// ends and nowhere else. A node keeps the addresses of its responder when its agent is killed, and when all that the
// agent knew is lost. A node whose configuration wants no responder has nothing of it, and others do not probe it by pods.
func TestHealth(t *testing.T) {
	c := startBare(t, 3, 3)
	for _, n := range c.nodes {
		n.healthConfig = probing
	}
	c.shortRests()
	c.startBerth()
	for range c.ways() {
		c.wantReached()
		c.answersSoon()
		c.cutOff(c.nodes[1])
		c.responderStays(c.nodes[0])
		c.noResponder(c.nodes[0], c.nodes[1], c.nodes[2])
		c.wantReached()
	}
}

// answersSoon checks how long others' answers take.
func (c *cluster) answersSoon() {
	c.t.Helper()
	for _, n := range c.nodes {
		h, _ := n.health()
		for _, p := range h.Probes {
			if p.Latency <= 0 || p.Latency > time.Second {
				c.t.Errorf("%s has an answer from %s after %s", n.name, p.Node, p.Latency)
			}
		}
		n.berth("audit")
		c.t.Logf("%s", n.berth("health"))
	}
}

// cutOff cuts a node's link, and joins it again when all nodes have seen that.
func (c *cluster) cutOff(cut *node) {
	c.t.Helper()
	nettest.Run(c.t, nil, "ip link set "+cut.uplink()+" down")
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
		well := false
		nettest.Eventually(c.t, fmt.Sprintf("%s to reach as %q", n.name, want), func() bool { have, well = n.reaches(); return slices.Equal(have, want) })
		if well {
			c.t.Errorf("berth health is well on %s, which reaches %q", n.name, have)
		}
	}
	nettest.Run(c.t, nil, "ip link set "+cut.uplink()+" up")
	c.wantReached()
}

// responderStays kills a node's agent, and then takes all that it knew.
func (c *cluster) responderStays(n *node) {
	c.t.Helper()
	was := c.responder(n)
	n.berthd.kill()
	n.berthd.start()
	c.wantReached()
	n.berth("audit")
	if now := c.responder(n); !slices.Equal(now, was) {
		c.t.Errorf("the responder has %v, and had %v before the agent was killed", now, was)
	}

	n.berthd.kill()
	n.mustRun(filepath.Join(n.bin, "berthd"), "--remove")
	nettest.Eventually(c.t, "the responder's link to be gone", func() bool { return !responderLink.MatchString(nettest.Snapshot(c.t, n.net).String()) })
	n.mustRun(found(c.t, "rm"), "-rf", "/var/lib/berth", "/run/berth")
	n.berthd.start()
	c.wantReached()
	n.berth("audit")
	if h, _ := n.health(); !slices.Equal(h.Addresses, was) || !slices.Equal(c.responder(n), was) {
		c.t.Errorf("the responder has %v, the cluster says %v, and it had %v before all was lost", h.Addresses, c.responder(n), was)
	}
}

// noResponder has a node do without a responder for a while.
func (c *cluster) noResponder(n, other, third *node) {
	c.t.Helper()
	again := func(config string) {
		n.healthConfig = config
		n.configure()
		n.berthd.kill()
		n.berthd.start()
	}
	again(", health: {enabled: false}")
	nettest.Eventually(c.t, "the node to tell of no responder", func() bool { return strings.Join(c.responder(n), "") == "" })
	want := slices.DeleteFunc(waysTo(n, third), func(w string) bool { return strings.HasPrefix(w, n.name+" pod") })
	nettest.Eventually(c.t, "others to probe only the node itself", func() bool { have, _ := other.reaches(); return slices.Equal(have, want) })
	if s := nettest.Snapshot(c.t, n.net).String(); responderLink.MatchString(s) {
		c.t.Errorf("a responder is left:\n%s", s)
	}
	n.berth("audit")
	again(probing)
}
