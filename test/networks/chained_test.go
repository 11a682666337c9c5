package networks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
)

// chain is a runtime that attaches pods by a list of plugins, of which berth-cni is the last one.
type chain struct {
	*node
	cni  *libcni.CNIConfig
	list *libcni.NetworkConfigList
}

// newChain makes a runtime with a list whose first plugin is `first`.
func newChain(n *node, first string) *chain {
	n.t.Helper()
	berth := fmt.Sprintf(`{"type":"berth-cni","root":%q,"mode":"chained","capabilities":{"portMappings":true,"bandwidth":true}}`, n.Root)
	list, err := libcni.NetworkConfFromBytes(fmt.Appendf(nil, `{"cniVersion":"1.1.0","name":"chain","plugins":[%s,%s]}`, first, berth))
	must(n.t, err)
	return &chain{n, libcni.NewCNIConfigWithCacheDir([]string{n.bin, n.plugins}, n.t.TempDir(), nil), list}
}

// ptp is a plugin that gives one address only.
func (n *node) ptp() string {
	return fmt.Sprintf(`{"type":"ptp","ipMasq":false,"ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":"10.1.0.0/24","rangeStart":"10.1.0.2","rangeEnd":"10.1.0.2"}]],"routes":[{"dst":"0.0.0.0/0"}]}}`, n.disk)
}

// asks are what a runtime passes for capabilities.
type asks map[string]any

var port8080 = asks{"portMappings": []any{
	map[string]any{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}, map[string]any{"hostPort": 8080, "containerPort": 80, "protocol": "udp"},
}}

func (c *chain) runtime(container string, pod *ns.Netns, caps asks) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: container, NetNS: pod.Ref().Path, IfName: "eth0", CapabilityArgs: caps}
}

func (c *chain) try(container string, pod *ns.Netns, caps asks) (*types100.Result, error) {
	r, err := c.cni.AddNetworkList(context.Background(), c.list, c.runtime(container, pod, caps))
	if err != nil {
		return nil, err
	}
	return types100.NewResultFromResult(r)
}

func (c *chain) add(container string, pod *ns.Netns, caps asks) *types100.Result {
	c.t.Helper()
	r, err := c.try(container, pod, caps)
	must(c.t, err)
	return r
}

func (c *chain) del(container string, pod *ns.Netns, caps asks) {
	c.t.Helper()
	must(c.t, c.cni.DelNetworkList(context.Background(), c.list, c.runtime(container, pod, caps)))
}

func (c *chain) check(container string, pod *ns.Netns, caps asks) error {
	return c.cni.CheckNetworkList(context.Background(), c.list, c.runtime(container, pod, caps))
}

// wantCode fails unless err is a CNI error with a code and a part of a text.
func wantCode(t testing.TB, err error, code uint, part string) {
	t.Helper()
	var e *types.Error
	if !errors.As(err, &e) || e.Code != code || !strings.Contains(e.Error(), part) {
		t.Errorf("error %v, want code %d with %q", err, code, part)
	}
}

var (
	nodeAt = netip.MustParseAddr("192.0.2.1") // as the client sees it
	onPort = netip.AddrPortFrom(nodeAt, 8080)
)

// client is a machine beyond the node.
func client(t testing.TB) *ns.Netns {
	t.Helper()
	at := nettest.Node(t)
	c, err := rtnl.Open(nil)
	must(t, err)
	defer c.Close()
	must(t, c.Do(rtnl.AddVeth(rtnl.End{Name: "uplink"}, 0, rtnl.End{Name: "eth0"}, at.Fd())))
	t.Cleanup(func() { nettest.Run(t, nil, "ip link del uplink") })
	nettest.Run(t, nil, "ip link set uplink addrgenmode none")
	nettest.Run(t, nil, "ip addr add 192.0.2.1/24 dev uplink")
	nettest.Run(t, nil, "ip link set uplink up")
	nettest.Run(t, at, "ip addr add 192.0.2.2/24 dev eth0")
	nettest.Run(t, at, "ip link set eth0 up")
	return at
}

// mapped are the host ports in the agent's table.
func (n *node) mapped() int {
	n.t.Helper()
	here, err := ns.Self()
	must(n.t, err)
	defer here.Close()
	instance, err := os.ReadFile(root.Dir(n.Root).Instance())
	must(n.t, err)
	all, err := nft.Open(here).Mapped(strings.TrimSpace(string(instance)))
	must(n.t, err)
	return len(all)
}

// A pod of the plugin ptp gets host ports and limits. The result is that of ptp. A client, the node's loopback and the pod itself reach
// the pod by the port. CHECK names what is missing, and DEL leaves nothing.
func TestChained(t *testing.T) {
	n := newNode(t)
	from := client(t)
	n.empty = n.state()
	c := newChain(n, n.ptp())
	pod := nettest.Pod(t)
	caps := asks{"portMappings": port8080["portMappings"], "bandwidth": map[string]any{
		"ingressRate": 80_000_000, "ingressBurst": 8_000_000, "egressRate": 40_000_000, "egressBurst": 4_000_000,
	}}
	r := c.add("c1", pod, caps)
	again, err := json.Marshal(r)
	must(t, err)
	if len(r.IPs) != 1 || r.IPs[0].Address.String() != "10.1.0.2/24" || len(r.Interfaces) != 2 {
		t.Errorf("the result is %s", again)
	}
	for _, network := range []string{"tcp", "udp"} {
		nettest.Serve(t, pod, network, ":80")
		for who, at := range map[string]*ns.Netns{"client": from, "node": nil, "pod": pod} {
			to := onPort
			if at == nil {
				to = netip.MustParseAddrPort("127.0.0.1:8080")
			}
			seen, err := nettest.Talk(at, network, to, 5*time.Second)
			if err != nil {
				t.Errorf("%s by %s: %v", who, network, err)
			}
			if at == from && seen.Addr() != netip.MustParseAddr("192.0.2.2") {
				t.Errorf("%s by %s: the pod sees %s", who, network, seen)
			}
		}
	}
	must(t, c.check("c1", pod, caps))
	host := r.Interfaces[0].Name
	nettest.Run(t, nil, "tc qdisc replace dev "+host+" root pfifo")
	wantCode(t, c.check("c1", pod, caps), 103, "sends with pfifo, not rate 10000000bps")
	nettest.Run(t, nil, "tc qdisc del dev "+host+" root")
	n.Crash()
	n.Again() // takes the limit again
	nettest.Eventually(t, "the limit", func() bool { return c.check("c1", pod, caps) == nil })
	c.del("c1", pod, caps)
	c.del("c1", pod, caps)
	n.nothingLeft()
}

// flowTo begins a flow by udp from a client to somebody, who answers in it. The function that it returns sends in this flow, and reports
// whether somebody answers.
func flowTo(t testing.TB, from *ns.Netns, to netip.AddrPort) func() bool {
	t.Helper()
	var conn net.Conn
	must(t, from.Do(func() (err error) { conn, err = net.Dial("udp", to.String()); return err }))
	t.Cleanup(func() { conn.Close() })
	answer := func() bool {
		must(t, conn.SetReadDeadline(time.Now().Add(300*time.Millisecond)))
		_, err := conn.Read(make([]byte, 100))
		return err == nil
	}
	ask := func() bool {
		_, err := conn.Write([]byte("?"))
		return err == nil && answer()
	}
	tries := 0
	nettest.Eventually(t, "an answer by udp at "+to.String(), func() bool { tries++; return ask() }) // nobody repeats a datagram that is lost
	for range tries - 1 {
		if !answer() { // late ones, which would look like answers to what is asked later
			break
		}
	}
	return ask
}

// Behind the other plugins there is a pod without an end on the node, and one behind a bridge. Where nothing is asked for, the chain
// works; what the node cannot do is an error, and the chain leaves nothing.
func TestChainedElsewhere(t *testing.T) {
	limit := asks{"bandwidth": map[string]any{"ingressRate": 80_000_000, "ingressBurst": 8_000_000}}
	n := newNode(t)
	for _, plugin := range []struct {
		name, conf       string
		caps             asks // that work
		ports, bandwidth string
	}{
		{"macvlan", `{"type":"macvlan","master":"br8",` + n.local("10.3.0.0/24") + `}`, nil, "eth0 has no end on the node", "eth0 has no end on the node"},
		{"bridge without a gateway", `{"type":"bridge","bridge":"br9",` + n.local("10.2.0.0/24") + `}`, limit, "the node reaches 10.2.0.", ""},
	} {
		t.Run(plugin.name, func(t *testing.T) {
			c := newChain(n, plugin.conf)
			pod := nettest.Pod(t)
			for what, caps := range map[string]asks{plugin.ports: port8080, plugin.bandwidth: limit} {
				if what != "" {
					_, err := c.try("c1", pod, caps)
					wantCode(t, err, 7, what)
					c.del("c1", pod, caps)
				}
			}
			c.add("c1", pod, plugin.caps)
			must(t, c.check("c1", pod, plugin.caps))
			nettest.Run(t, pod, "ip link del eth0")
			if err := c.check("c1", pod, plugin.caps); err == nil {
				t.Error("CHECK misses nothing without the interface")
			}
			c.del("c1", pod, plugin.caps)
		})
	}
	n.nothingLeft()
}

// Somebody takes the pod's link away, and no DEL comes. The attachment ends with the link: Berth does not make it anew.
func TestChainedLinkGone(t *testing.T) {
	n := newNode(t)
	c := newChain(n, n.ptp())
	pod := nettest.Pod(t)
	r := c.add("c1", pod, port8080)
	nettest.Run(t, nil, "ip link del "+r.Interfaces[0].Name)
	n.Crash()
	n.Again()
	nettest.Eventually(t, "no mapping", func() bool { return n.mapped() == 0 })
	c.del("c1", pod, port8080)
	n.nothingLeft()
}
