package main

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/stamp"
)

// ownPort is the port of the agent at the tests' root.
const ownPort = "pabcdefghij2345"

// port makes a port on a bridge, as an agent does. Its other end is peer9.
func (a *away) port(bridge *netlink.Bridge, k stamp.Key) {
	a.Helper()
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: ownPort, MasterIndex: bridge.Index}, PeerName: "peer9"}
	must(a, netlink.LinkAdd(link))
	a.Cleanup(func() { netlink.LinkDel(link) })
	a.alias(ownPort, stamp.PortAlias("abcd234567", hold.ID(ownPort[1+stamp.PrefixLen:]), k, 0))
	groups, err := stamp.PortGroupsOf("abcd")
	must(a, err)
	must(a, netlink.LinkSetGroup(link, int(groups.Live())))
	must(a, netlink.LinkSetUp(link))
	a.links = append(a.links, ownPort)
}

// While no agent runs, a DEL stops what a pod sends by its port of a bridge, whether the runtime has the result of ADD, the pod's interface leads to the
// port, or somebody has renamed it. Another pod's port stays up.
func TestCutPort(t *testing.T) {
	node := netip.MustParseAddr("192.0.2.1")
	for name, test := range map[string]struct {
		prev, rename string
		k            stamp.Key
		cut          bool
	}{
		"by the result":            {prevResult(ownPort), "", key, true},
		"by the pod":               {"", "", key, true},
		"renamed":                  {"", "veth7", key, true},
		"another pod's":            {prevResult(ownPort), "", another, false},
		"another pod's, no result": {"", "", another, false},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAway(t, t.TempDir())
			bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}
			must(t, netlink.LinkAdd(bridge))
			t.Cleanup(func() { netlink.LinkDel(bridge) })
			must(t, netlink.LinkSetUp(bridge))
			nettest.Run(t, nil, "ip addr add 192.0.2.1/24 dev br0")
			a.port(bridge, test.k)
			pod := nettest.Pod(t)
			nettest.Run(t, nil, "ip link set peer9 netns "+pod.Ref().Path+" name eth0")
			nettest.Run(t, pod, "ip addr add 192.0.2.2/24 dev eth0")
			nettest.Run(t, pod, "ip link set eth0 up")
			nettest.Ping(t, pod, node)
			if test.rename != "" {
				nettest.Run(t, nil, fmt.Sprintf("ip link set %s down name %s", ownPort, test.rename))
				nettest.Run(t, nil, "ip link set "+test.rename+" up")
				a.links[len(a.links)-1] = test.rename
				nettest.Ping(t, pod, node)
			}
			env := podEnv("DEL")
			env["CNI_NETNS"] = pod.Ref().Path
			if out, code := execute(t, env, strings.NewReader(conf(a.root, test.prev))); code != 0 || out != "" {
				t.Fatalf("code %d: %s", code, out)
			}
			if test.cut {
				nettest.NoPing(t, pod, node)
			} else {
				nettest.Ping(t, pod, node)
			}
			if r := a.one(); r.Cut != test.cut || r.Link != map[bool]string{true: ownPort}[test.prev != ""] {
				t.Errorf("queued is %+v", r)
			}
		})
	}
}
