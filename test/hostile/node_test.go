// Package hostile has a test for each thing that a hostile pod, or a careless
// program with root on the node, was once able to do: with the real programs, one
// file a theme. docs/SECURITY.md is the list of what Berth promises against them,
// and rows_test.go compares it with the tests.
//
// A hostile pod has CAP_NET_ADMIN and CAP_NET_RAW in its own network namespace: it
// sends whatever frames it likes, and changes links, routes and rules there.
package hostile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/api/client"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/test/programs"
)

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == confined {
		fmt.Fprintln(os.Stderr, confine())
		os.Exit(1)
	}
	programs.Main(m)
}

// plain is a configuration whose sweep does not come within a test: what is
// mended is mended because somebody noticed.
const plain = "sweepInterval: 1h\npools:\n- {name: default, cidrs: [10.88.0.0/20, 'fd00:88::/64']}\n"

// Addresses of the node, of the machine that its default route leads to, and one
// that lies behind that machine.
var (
	node4 = netip.MustParseAddr("192.0.2.1")
	node6 = netip.MustParseAddr("2001:db8::1")
	lan4  = netip.MustParseAddr("192.0.2.2")
	lan6  = netip.MustParseAddr("2001:db8::2")
	far4  = netip.MustParseAddr("198.51.100.1")
)

// node is the test's node, its agent, and the machine beyond it.
type node struct {
	*programs.Agent
	t   *testing.T
	bin string    // folder of Berth's programs
	lan *ns.Netns // the machine, at its eth0
}

// newNode starts an agent on a node with an uplink. What is left when the test
// ends does not reach the next test, whatever has failed in this one.
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
	dir := root.Dir(t.TempDir())
	if err := os.MkdirAll(filepath.Dir(dir.Config()), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir.Config(), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { clear(t) })
	n.Agent = programs.Run(t, n.bin, string(dir))
	t.Cleanup(func() {
		if t.Failed() { // it may be stuck
			_ = n.Kill()
		}
	})
	return n
}

// uplink gives the node addresses and a default route, and makes the machine that
// it leads to. That machine has routes to the pods: it can tell traffic with a
// pod's address from traffic that is masqueraded.
func uplink(t *testing.T) *ns.Netns {
	t.Helper()
	lan := nettest.Node(t)
	for _, command := range []string{
		"ip link add up0 type veth peer name eth0 netns " + filepath.Base(lan.Ref().Path),
		"ip addr add 192.0.2.1/24 dev up0", "ip addr add 2001:db8::1/64 dev up0 nodad",
		"ip link set up0 up",
	} {
		nettest.Run(t, nil, command)
	}
	t.Cleanup(func() { nettest.Run(t, nil, "ip link del up0") })
	for _, command := range []string{
		"ip addr add 192.0.2.2/24 dev eth0", "ip addr add 2001:db8::2/64 dev eth0 nodad",
		"ip addr add 198.51.100.1/32 dev lo", "ip link set eth0 up",
		"ip route add 10.88.0.0/16 via 192.0.2.1", "ip route add fd00:88::/64 via 2001:db8::1",
	} {
		nettest.Run(t, lan, command)
	}
	nettest.Run(t, nil, "ip route add default via 192.0.2.2")
	nettest.Run(t, nil, "ip route add default via 2001:db8::2")
	return lan
}

// clear takes away whatever an agent may have left in the test's node.
func clear(t *testing.T) {
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

// pod is an attached container.
type pod struct {
	id     string
	at     *ns.Netns
	host   string           // host veth
	mac    net.HardwareAddr // of the host veth
	ip4    netip.Addr
	ip6    netip.Addr
	result string // what ADD answered
}

// exec runs berth-cni as a runtime does; keys are further ones of its configuration.
func (n *node) exec(verb, container, netns string, keys ...string) (string, error) {
	fields := append([]string{`"cniVersion":"1.1.0"`, `"name":"net"`, `"type":"berth-cni"`, fmt.Sprintf(`"root":%q`, n.Root)}, keys...)
	cmd := exec.Command(filepath.Join(n.bin, "berth-cni"))
	cmd.Env = []string{"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + container, "CNI_NETNS=" + netns, "CNI_IFNAME=eth0", "CNI_PATH=" + n.bin}
	cmd.Stdin = strings.NewReader("{" + strings.Join(fields, ",") + "}")
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s of %s: %w: %s", verb, container, err, out)
	}
	return string(out), nil
}

// tryAdd attaches a new container.
func (n *node) tryAdd(container string) (*pod, error) {
	n.t.Helper()
	p := &pod{id: container, at: nettest.Pod(n.t)}
	var err error
	if p.result, err = n.exec("ADD", container, p.at.Ref().Path); err != nil {
		return p, err
	}
	var result types100.Result
	if err := json.Unmarshal([]byte(p.result), &result); err != nil {
		return p, fmt.Errorf("result of ADD: %w: %s", err, p.result)
	}
	p.host = result.Interfaces[0].Name
	for _, ip := range result.IPs {
		addr, _ := netip.AddrFromSlice(ip.Address.IP)
		if addr = addr.Unmap(); addr.Is4() {
			p.ip4 = addr
		} else {
			p.ip6 = addr
		}
	}
	link, err := netlink.LinkByName(p.host)
	if err != nil {
		return p, err
	}
	p.mac = link.Attrs().HardwareAddr
	return p, nil
}

func (n *node) add(container string) *pod {
	n.t.Helper()
	p, err := n.tryAdd(container)
	if err != nil {
		n.t.Fatal(err)
	}
	return p
}

// adds attaches several containers, named by a letter and their number.
func (n *node) adds(letter string, many int) (pods []*pod) {
	n.t.Helper()
	for i := range many {
		pods = append(pods, n.add(letter+strconv.Itoa(i)))
	}
	return pods
}

// tryDel deletes a container as a runtime does that has kept the result of ADD.
func (n *node) tryDel(p *pod, keys ...string) error {
	_, err := n.exec("DEL", p.id, p.at.Ref().Path, append(keys, `"prevResult":`+p.result)...)
	return err
}

func (n *node) del(p *pod, keys ...string) {
	n.t.Helper()
	if err := n.tryDel(p, keys...); err != nil {
		n.t.Fatal(err)
	}
}

// wait has a DEL answered when all is gone.
const wait = `"wait":true`

func (n *node) check(p *pod) error {
	_, err := n.exec("CHECK", p.id, p.at.Ref().Path, `"prevResult":`+p.result)
	return err
}

// kill is SIGKILL; start lets a killed agent live again.
func (n *node) kill() {
	n.t.Helper()
	if err := n.Kill(); err != nil {
		n.t.Fatal(err)
	}
	n.API.Close()
}

func (n *node) start() {
	n.t.Helper()
	if err := n.Start(context.Background()); err != nil {
		n.t.Fatal(err)
	}
}

// wantGone deletes every attachment and audits: nothing may be left of them.
func (n *node) wantGone() {
	n.t.Helper()
	for _, at := range n.list() {
		if _, err := n.API.DeleteOne(context.Background(), at.ID, true); err != nil && !client.IsUnknown(err) {
			n.t.Errorf("deleting %s: %v", at.ContainerID, err)
		}
	}
	nettest.Eventually(n.t, "all attachments to be gone", func() bool { return len(n.list()) == 0 })
	n.Audit(n.t)
}

func (n *node) list() []api.Attachment {
	n.t.Helper()
	l, err := n.API.List(context.Background(), api.Filter{})
	if err != nil {
		n.t.Fatal(err)
	}
	return l
}

// linkOf returns the link with that name, or nil.
func linkOf(t *testing.T, name string) *netlink.LinkAttrs {
	t.Helper()
	link, err := netlink.LinkByName(name)
	if missing := (netlink.LinkNotFoundError{}); err != nil {
		if !errors.As(err, &missing) {
			t.Fatal(err)
		}
		return nil
	}
	return link.Attrs()
}

// isUp reports whether a link is there and up.
func isUp(t *testing.T, name string) bool {
	t.Helper()
	l := linkOf(t, name)
	return l != nil && l.Flags&net.FlagUp != 0
}
