//go:build figures

package cluster

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// peerConflist is the network of a node without Berth. 10.250.0.0/16 is nobody else's.
const peerConflist = `{"cniVersion": "1.0.0", "name": "peer", "plugins": [{"type": "bridge", "bridge": "cni0", "isGateway": true,
  "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.250.0.0/16"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}`

// packed is the manifest of pods that are all on one node.
func packed(name, node string, replicas int) string {
	return strings.Replace(deployment(name, replicas, 0), "    spec:\n", "    spec:\n      nodeSelector: {kubernetes.io/hostname: "+node+"}\n", 1)
}

// TestFigures measures a burst of 30 pods on one node, and the deletion of 100: on a node of Berth, and on one of bridge and host-local,
// by turns, in one cluster. It prints what a runtime waits for ADD and DEL, and what people wait for.
//
//	go test -tags figures ./test/cluster -run TestFigures -v
func TestFigures(t *testing.T) {
	c := startBare(t, 2)
	berth, peer := c.nodes[0], c.nodes[1]
	berth.startBerth(c.control)
	berth.timePlugins("berth-cni")
	peers := programs.Peers(t)
	for _, name := range []string{"bridge", "host-local", "loopback"} {
		peer.mustRun(found(t, "busybox"), "cp", filepath.Join(peers, name), "/opt/cni/bin/")
	}
	peer.timePlugins("bridge")
	peer.write("etc/cni/net.d/10-peer.conflist", peerConflist)
	for _, n := range c.nodes {
		c.waitReady(n)
	}
	c.waitAccount()
	for round := range 3 {
		for i := range c.nodes {
			n := c.nodes[(round+i)%2]
			name := map[*node]string{berth: "berth", peer: "bridge"}[n]
			c.burst(n, name, round)
		}
	}
}

// timePlugins has a node's plugin timed.
func (n *node) timePlugins(name string) {
	n.t.Helper()
	busybox := found(n.t, "busybox")
	n.mustRun(busybox, "mkdir", "/opt/cni/timed")
	n.mustRun(busybox, "mv", "/opt/cni/bin/"+name, "/opt/cni/timed/"+name)
	n.timePlugin(name, "/opt/cni/timed/"+name)
}

// burst makes 30 pods on a node, makes them 100, and deletes them.
func (c *cluster) burst(n *node, name string, round int) {
	t, any := c.t, func(timing) bool { return true }
	t.Helper()
	links, err := netlink.NewHandleAt(netns.NsHandle(n.net.Fd()), unix.NETLINK_ROUTE)
	must(t, err)
	defer links.Close()
	veths := func() (count int) {
		all, err := links.LinkList()
		for errors.Is(err, netlink.ErrDumpInterrupted) { // links came or went meanwhile
			all, err = links.LinkList()
		}
		must(t, err)
		for _, l := range all {
			if l.Type() == "veth" {
				count++
			}
		}
		return count
	}
	before := veths()
	n.write("var/log/cni-times", "")
	app := fmt.Sprintf("%s-%d", name, round)
	began := time.Now()
	c.apply(packed(app, n.name, 30))
	c.settle("on "+n.name, app, 30)
	ready := time.Since(began)
	adds := n.times("ADD", any)
	c.mustKubectl("scale", "deployment/"+app, "--replicas=100")
	c.settle("on "+n.name, app, 100)
	if count := veths(); count != before+100 {
		t.Fatalf("%d links, and %d before", count, before)
	}
	began = time.Now()
	c.mustKubectl("delete", "deployment/"+app, "--wait=false")
	nettest.Eventually(t, "the last link to be gone", func() bool { return veths() <= before })
	gone := time.Since(began)
	dels := n.times("DEL", any)
	nettest.Eventually(t, "the pods to be gone", func() bool { return len(c.pods(app)) == 0 })
	fmt.Printf("%-7s round %d: 30 pods ready %s, ADD p50 %s, p99 %s; 100 pods deleted, last link gone %s, DEL p50 %s, p99 %s\n",
		name, round, ready.Round(time.Millisecond), rank(adds, 50), rank(adds, 99), gone.Round(time.Millisecond), rank(dels, 50), rank(dels, 99))
}
