package networks

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
)

// A pod of each plugin has these addresses only, so that the next pod has the same ones.
var podAddrs = []string{"10.2.0.2", "fd00:2::2"}

// nodeAddrs are the node's addresses, as a client sees them.
var nodeAddrs = []string{"192.0.2.1", "2001:db8::1"}

// dual is a plugin that gives the pods' addresses of both families whose last number is `last`.
func (n *node) dual(head string, last int) string {
	return fmt.Sprintf(`{%s,"ipMasq":false,"ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":"10.2.0.0/24","rangeStart":"10.2.0.%[3]d","rangeEnd":"10.2.0.%[3]d"}],`+
		`[{"subnet":"fd00:2::/64","rangeStart":"fd00:2::%[3]d","rangeEnd":"fd00:2::%[3]d"}]],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}}`, head, n.disk, last)
}

// plugin is one ahead of berth-cni.
type plugin struct {
	name, head string
	filtered   string // bridge-nf-call-iptables and bridge-nf-call-ip6tables
}

// ahead are the plugins ahead of berth-cni from behind which a pod can have host ports. What comes from one port of a bridge to another
// takes other ways through the kernel with bridge-nf-call than without.
var ahead = []plugin{
	{"ptp", `"type":"ptp"`, "1"},
	{"bridge", `"type":"bridge","bridge":"br9","isGateway":true,"hairpinMode":true`, "0"},
	{"bridge that is filtered", `"type":"bridge","bridge":"br9","isGateway":true,"hairpinMode":true`, "1"},
}

// eachAhead runs a test with each of some plugins ahead of berth-cni, on a node of its own with a client beyond it.
func eachAhead(t *testing.T, plugins []plugin, test func(n *node, from *ns.Netns, head string)) {
	for _, tt := range plugins {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t)
			for _, name := range []string{"bridge-nf-call-iptables", "bridge-nf-call-ip6tables"} {
				nettest.Sysctl(t, nil, "bridge/"+name, tt.filtered)
			}
			t.Cleanup(func() { nettest.Run(t, nil, "ip addr flush dev br9") })
			from := client(t)
			nettest.Run(t, nil, "ip addr add 2001:db8::1/64 dev uplink nodad")
			nettest.Run(t, from, "ip addr add 2001:db8::2/64 dev eth0 nodad")
			n.empty = n.state()
			test(n, from, tt.head)
			nettest.Run(t, nil, "ip addr flush dev br9")
			n.nothingLeft()
		})
	}
}

// alone is a runtime whose list has no berth-cni.
func (c *chain) alone(plugin string) *chain {
	c.t.Helper()
	list, err := libcni.NetworkConfFromBytes(fmt.Appendf(nil, `{"cniVersion":"1.1.0","name":"chain","plugins":[%s]}`, plugin))
	must(c.t, err)
	return &chain{c.node, c.cni, list}
}

// serve has a pod answer at the port to which the host port leads, and waits until the node reaches the pod.
func serve(t testing.TB, pod *ns.Netns) {
	t.Helper()
	for _, a := range podAddrs { // a socket for all addresses might answer from another one
		at := netip.AddrPortFrom(netip.MustParseAddr(a), 80)
		nettest.Serve(t, pod, "tcp", at.String())
		nettest.Serve(t, pod, "udp", at.String())
		nettest.Ping(t, nil, at.Addr())
	}
}

// A client beyond the node, the node itself, another pod behind the same plugin, and the pod itself reach a pod by its host port. The
// client keeps its address.
func TestChainedReached(t *testing.T) {
	eachAhead(t, ahead, func(n *node, from *ns.Netns, head string) {
		t := n.t
		c := newChain(n, n.dual(head, 2))
		pod, other := nettest.Pod(t), nettest.Pod(t)
		neighbour := c.alone(n.dual(head, 9))
		neighbour.add("c9", other, nil)
		c.add("c1", pod, port8080)
		must(t, c.check("c1", pod, port8080))
		n.Audit(t)
		serve(t, pod)
		for who, at := range map[string]*ns.Netns{"client": from, "node": nil, "neighbour": other, "pod": pod} {
			for i, addr := range nodeAddrs {
				for _, network := range []string{"tcp", "udp"} {
					to := netip.AddrPortFrom(netip.MustParseAddr(addr), 8080)
					if at == nil {
						to = netip.AddrPortFrom(netip.MustParseAddr([]string{"127.0.0.1", "::1"}[i]), 8080)
					}
					seen, err := nettest.Talk(at, network, to, 5*time.Second)
					if err != nil {
						t.Errorf("%s by %s: %v", who, network, err)
					} else if want := []string{"192.0.2.2", "2001:db8::2"}[i]; at == from && seen.Addr().String() != want {
						t.Errorf("%s by %s: the pod sees %s, want %s", who, network, seen, want)
					}
				}
			}
		}
		c.del("c1", pod, port8080)
		neighbour.del("c9", other, nil)
	})
}

// While the agent is away, the pod's addresses go to a successor at once. What is still mapped for the pod does not lead to the successor,
// not for new connections and not for those that the pod had, and no frame of it reaches the successor. When the agent is back, nothing is
// left of the pod.
func TestChainedSuccessor(t *testing.T) {
	eachAhead(t, ahead, func(n *node, from *ns.Netns, head string) {
		t := n.t
		c := newChain(n, n.dual(head, 2))
		neighbour := nettest.Pod(t)
		c.alone(n.dual(head, 9)).add("c9", neighbour, nil)
		pod := nettest.Pod(t)
		c.add("c1", pod, port8080)
		serve(t, pod)
		var flows []func() bool
		for _, addr := range nodeAddrs {
			for _, at := range []*ns.Netns{from, neighbour} {
				flows = append(flows, flowTo(t, at, netip.AddrPortFrom(netip.MustParseAddr(addr), 8080)))
			}
		}
		n.Crash()
		c.del("c1", pod, port8080)
		c.del("c1", pod, port8080)

		plain, next := c.alone(n.dual(head, 2)), nettest.Pod(t)
		plain.add("c2", next, nil)
		serve(t, next)
		heard := listen(t, next)
		own := map[netip.AddrPort]bool{} // who has asked for the successor's own port: their connections may end later
		if n.mapped() == 0 {
			t.Error("the port is not mapped any more, and the test shows nothing")
		}
		reached := func(when string) {
			t.Helper()
			var all sync.WaitGroup
			for who, at := range map[string]*ns.Netns{"client": from, "node": nil, "neighbour": neighbour, "successor": next} {
				for _, addr := range nodeAddrs {
					for _, network := range []string{"tcp", "udp"} {
						all.Go(func() {
							to := netip.AddrPortFrom(netip.MustParseAddr(addr), 8080)
							if seen, err := nettest.Talk(at, network, to, 300*time.Millisecond); err == nil {
								t.Errorf("%s: the %s reaches the successor by %s as %s", when, who, network, seen)
							}
						})
					}
				}
			}
			for _, flow := range flows {
				all.Go(func() {
					if flow() {
						t.Errorf("%s: a flow of the pod's reaches the successor", when)
					}
				})
			}
			all.Wait()
			if frames := heard(own); len(frames) > 0 {
				t.Errorf("%s: the successor has heard %v", when, frames)
			}
		}
		reached("without the agent")
		nettest.Run(t, neighbour, "ip neigh flush dev eth0") // which may know the former pod's MAC
		for _, a := range podAddrs {
			for who, at := range map[string]*ns.Netns{"node": nil, "neighbour": neighbour} {
				seen, err := nettest.Talk(at, "tcp", netip.AddrPortFrom(netip.MustParseAddr(a), 80), 5*time.Second)
				if err != nil {
					t.Errorf("the successor's own port by the %s: %v", who, err)
				}
				own[seen] = true
			}
		}
		if len(heard(nil)) == 0 {
			t.Error("nobody hears the successor's frames, and the test shows nothing")
		}
		n.Again()
		reached("with the agent")
		nettest.Eventually(t, "no mapping", func() bool { return n.mapped() == 0 })
		reached("after the release")
		plain.del("c2", next, nil)
		c.alone(n.dual(head, 9)).del("c9", neighbour, nil)
	})
}

// listen hears the frames that a pod gets. The function that it returns tells which packets for port 80 have come since the last call, but for
// those of some senders.
func listen(t testing.TB, pod *ns.Netns) func(but map[netip.AddrPort]bool) []string {
	t.Helper()
	var fd int
	must(t, pod.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, int(htons(unix.ETH_P_ALL)))
		return err
	}))
	t.Cleanup(func() { unix.Close(fd) })
	return func(but map[netip.AddrPort]bool) (heard []string) {
		for packet := make([]byte, 2048); ; {
			size, from, err := unix.Recvfrom(fd, packet, 0)
			if errors.Is(err, unix.EAGAIN) {
				return heard
			}
			must(t, err)
			if at, ok := from.(*unix.SockaddrLinklayer); !ok || at.Pkttype == unix.PACKET_OUTGOING {
				continue
			}
			head, protocol, sender := 20, 9, packet[12:16]
			if size > 40 && packet[0]>>4 == 6 {
				head, protocol, sender = 40, 6, packet[8:24]
			}
			addr, _ := netip.AddrFromSlice(sender)
			known := but[netip.AddrPortFrom(addr, binary.BigEndian.Uint16(packet[head:]))]
			if p := packet[protocol]; !known && size > head+4 && (p == unix.IPPROTO_TCP || p == unix.IPPROTO_UDP) && binary.BigEndian.Uint16(packet[head+2:]) == 80 {
				heard = append(heard, fmt.Sprintf("%x", packet[:min(size, head+8)]))
			}
		}
	}
}

// htons turns a number into the network's byte order.
func htons(n uint16) uint16 { return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, n)) }
