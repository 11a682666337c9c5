// Package hostile has a test for each thing that a hostile pod, or a careless
// program with root on the node, was once able to do: with the real programs, one
// file a theme. docs/SECURITY.md is the list of what Berth promises against them,
// and rows_test.go compares it with the tests.
//
// A hostile pod has CAP_NET_ADMIN and CAP_NET_RAW in its own network namespace: it
// sends whatever frames it likes, and changes links, routes and rules there.
package hostile

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == confined {
		fmt.Fprintln(os.Stderr, confine())
		os.Exit(1)
	}
	programs.Main(m)
}

var must = nettest.Must

// plain is a configuration whose sweep does not come within a test: the agent mends things only
// because it notices a change.
const plain = "sweepInterval: 1h\npools:\n- {name: default, cidrs: [10.88.0.0/20, 'fd00:88::/64']}\n"

// Addresses of the node, of the machine that its default route leads to, and an
// address that lies behind that machine.
var (
	node4 = netip.MustParseAddr("192.0.2.1")
	node6 = netip.MustParseAddr("2001:db8::1")
	lan4  = netip.MustParseAddr("192.0.2.2")
	lan6  = netip.MustParseAddr("2001:db8::2")
	far4  = netip.MustParseAddr("198.51.100.1")
)

// node is the test's node, its agent, and the machine beyond it.
type node struct {
	*programs.Node
	t   *testing.T
	bin string    // folder of Berth's programs
	lan *ns.Netns // the machine, at its eth0
}

// newNode starts an agent on a node with an uplink. What is left when the test
// ends does not reach the next test, whatever has failed in this test.
func newNode(t *testing.T, config string) *node {
	t.Helper()
	nettest.Need(t)
	programs.Need(t, "nft", "conntrack")
	return newNodeOf(t, programs.Own(t), config)
}

// newNodeOf is newNode with the programs of a folder.
func newNodeOf(t *testing.T, bin, config string) *node {
	t.Helper()
	n := &node{t: t, bin: bin, lan: uplink(t)}
	t.Cleanup(func() { sweepUp(t) })
	n.Node = programs.RunNode(t, n.bin, config)
	t.Cleanup(func() {
		if t.Failed() { // the agent may be stuck
			_ = n.Kill()
		}
	})
	return n
}

// uplink gives the node addresses and a default route, and makes the machine to
// which the route leads. That machine has routes to the pods: it can tell traffic
// with a pod's address from traffic that is masqueraded.
func uplink(t *testing.T) *ns.Netns {
	t.Helper()
	lan := nettest.Node(t)
	for _, command := range []string{
		"ip link add up0 type veth peer name eth0 netns " + filepath.Base(lan.Ref().Path),
		"ip addr add 192.0.2.1/24 dev up0", "ip addr add 2001:db8::1/64 dev up0 nodad",
	} {
		nettest.Run(t, nil, command)
	}
	nettest.Sysctl(t, nil, "ipv6/conf/up0/accept_dad", "0")
	nettest.Run(t, nil, "ip link set up0 up")
	t.Cleanup(func() { nettest.Run(t, nil, "ip link del up0") })
	for _, command := range []string{
		"ip addr add 192.0.2.2/24 dev eth0", "ip addr add 2001:db8::2/64 dev eth0 nodad",
		"ip addr add 198.51.100.1/32 dev lo", "ip link set eth0 up",
		"ip route add 10.88.0.0/16 via 192.0.2.1", "ip route add fd00:88::/64 via 2001:db8::1",
	} {
		nettest.Run(t, lan, command)
	}
	awaitRoute(t, "local fe80:", " dev up0 ")
	nettest.Run(t, nil, "ip route add default via 192.0.2.2")
	nettest.Run(t, nil, "ip route add default via 2001:db8::2")
	return lan
}

// awaitRoute waits until the node has a route whose text in nettest.State has all these parts.
// The kernel makes some routes of an IPv6 address a moment after it has the address, also
// without duplicate address detection (addrconf_dad_work).
func awaitRoute(t *testing.T, parts ...string) {
	t.Helper()
	nettest.Eventually(t, "the node has the route "+strings.Join(parts, "..."), func() bool {
		for line := range strings.Lines(nettest.Snapshot(t, nil).Only("route").String()) {
			if !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(line, part) }) {
				return true
			}
		}
		return false
	})
}

// sweepUp takes away whatever an agent may have left in the test's node.
func sweepUp(t *testing.T) {
	links, err := netlink.LinkList()
	if err != nil {
		t.Error(err)
	}
	for _, l := range links {
		if l.Type() == "veth" && l.Attrs().Name != "up0" {
			_ = netlink.LinkDel(l) // its peer may have taken it along
		}
	}
	nettest.Run(t, nil, "nft flush ruleset")
	nettest.Run(t, nil, "ip route flush proto 98")
	nettest.Run(t, nil, "ip -6 route flush proto 98")
	forget(t)
}

// forget empties the node's connection tracking: conntrack -F.
func forget(t *testing.T) {
	t.Helper()
	if err := netlink.ConntrackTableFlush(netlink.ConntrackTable); err != nil {
		t.Error(err)
	}
}

// wantGone deletes every attachment and audits: nothing may be left of them.
func (n *node) wantGone() {
	n.t.Helper()
	programs.DetachAll(n.t, n.API)
	nettest.Eventually(n.t, "all attachments to be gone", func() bool { return len(programs.List(n.t, n.API)) == 0 })
	n.Audit(n.t)
}

// signal sends the agent a signal.
func signal(s unix.Signal) func(*node) {
	return func(n *node) {
		n.t.Helper()
		must(n.t, n.Signal(s))
	}
}

// hang has the agent hang until somebody calls goOn.
func (n *node) hang() (goOn func()) {
	n.t.Helper()
	must(n.t, n.Freeze())
	return func() { signal(unix.SIGCONT)(n) }
}
