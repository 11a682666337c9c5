package hostile

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// A machine of the LAN writes the node's 127.0.0.1 into its packets, on a node with and without
// route_localnet. The machine does not reach a host port of 127.0.0.1 alone. It reaches a host
// port of all addresses by the node's own address.
func TestHostPortOfTheLoopbackIsTheNodesAlone(t *testing.T) {
	for _, routed := range []string{"0", "1"} {
		t.Run("route_localnet "+routed, func(t *testing.T) {
			n := newNode(t, plain)
			sysctl(t, "ipv4/conf/all/route_localnet", routed)
			a, err := n.tryAdd("a", `"runtimeConfig":{"portMappings":[`+
				`{"hostPort":8081,"containerPort":7777,"hostIP":"127.0.0.1"},{"hostPort":8081,"containerPort":7777,"protocol":"udp","hostIP":"127.0.0.1"},`+
				`{"hostPort":8080,"containerPort":7777,"protocol":"udp"}]}`)
			must(t, err)
			heard, send := listen(t, a.at), n.uplinkWire(t)
			loop, stranger := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("192.0.2.77")
			for _, port := range []uint16{8080, 8081} {
				send(udpPacket(stranger, loop, 1000, port, "hear me"))
				send(tcpPacket(stranger, loop, 1000, port, syn, 1, 0))
			}
			nettest.Eventually(t, "what goes to the node's own address", func() bool {
				send(udpPacket(lan4, node4, 2000, 8080, "hear me"))
				return heard.count(func(s seen) bool { return s.src == lan4 && s.dst == a.ip4 }) > 0
			})
			if n := heard.count(func(s seen) bool { return s.src == stranger }); n > 0 {
				t.Errorf("the pod hears %d packets that went to the node's 127.0.0.1", n)
			}
			n.wantGone()
		})
	}
}

// fewPorts is a configuration by which masquerade has few ports.
const fewPorts = "connections: 512\nmasquerade: {ports: 20000-21023}\n" + plain

// given returns the ports of the node that masquerade has given a pod towards a port of the LAN's
// machine.
func given(t *testing.T, own netip.Addr, proto byte, to uint16) map[uint16]bool {
	t.Helper()
	all := nettest.List(t, func() ([]*netlink.ConntrackFlow, error) {
		return netlink.ConntrackTableList(netlink.ConntrackTable, family(own))
	})
	ports := map[uint16]bool{}
	for _, f := range all {
		if src, _ := netip.AddrFromSlice(f.Forward.SrcIP); src.Unmap() == own && f.Forward.Protocol == proto && f.Forward.DstPort == to {
			ports[f.Reverse.DstPort] = true
		}
	}
	return ports
}

// A pod sends to a machine outside from many ports, and masquerade gives the pod many ports of the
// node. A tenth of masquerade's ports are host ports of another pod, for all addresses of the node or
// for one. The sending pod gets none of these host ports, even if it is another agent's.
func TestHostPortsAreNotShadowed(t *testing.T) {
	for _, whose := range []string{"the same agent's", "another agent's"} {
		t.Run(whose, func(t *testing.T) {
			n := newNode(t, fewPorts)
			victims := n
			if whose != "the same agent's" {
				victims = &node{t: t, bin: n.bin, lan: n.lan, Node: programs.RunNode(t, n.bin, strings.NewReplacer("10.88.", "10.89.", "fd00:88:", "fd00:89:").Replace(fewPorts))}
			}
			shadow(t, n, victims)
		})
	}
}

// shadow is TestHostPortsAreNotShadowed for a sending pod of n, and a pod of victims with host ports.
func shadow(t *testing.T, n, victims *node) {
	const first, hostPorts, many = 20000, 100, 200
	mapped := ""
	for i := range hostPorts {
		for _, proto := range []string{"tcp", "udp"} {
			for _, at := range []string{node4.String(), node6.String()} {
				if i%2 == 0 {
					at = ""
				}
				mapped += fmt.Sprintf(`,{"hostPort":%d,"containerPort":7777,"protocol":"%s","hostIP":"%s"}`, first+i, proto, at)
			}
		}
	}
	_, err := victims.tryAdd("victim", `"runtimeConfig":{"portMappings":[`+mapped[1:]+`]}`)
	must(t, err)
	evil := n.add("evil")
	evil.mute(t)
	w := evil.wire(t)
	const to = 5060
	for _, as := range []struct{ own, to netip.Addr }{{evil.ip4, lan4}, {evil.ip6, lan6}} {
		nettest.Serve(t, n.lan, "tcp", netip.AddrPortFrom(as.to, to).String()) // a refusal would end the flow
		for _, proto := range []byte{udp, tcp} {
			from := uint16(1024)
			nettest.Eventually(t, "the pod to have many ports", func() bool {
				for range 50 { // the kernel draws a port anew for each packet
					if proto == udp {
						w.send(ether(evil.mac, w.mac, udpPacket(as.own, as.to, from, to, "hear me")))
					} else {
						w.send(ether(evil.mac, w.mac, tcpPacket(as.own, as.to, from, to, syn, 1, 0)))
					}
					from++
				}
				ports := given(t, as.own, proto, to)
				for p := range ports {
					if p < first+hostPorts {
						t.Fatalf("the pod gets the host port %d, by protocol %d from %s", p, proto, as.own)
					}
				}
				return len(ports) >= many
			})
			forget(t)
		}
	}
}

// A pod gets a port from masquerade while the port is nobody's host port, and goes on sending. The
// next pod that gets this host port gets the packets that the machine outside sends to the port.
func TestHostPortsHaveNoFormerShadows(t *testing.T) {
	n := newNode(t, fewPorts)
	evil := n.add("evil")
	w := evil.wire(t)
	const to = 5060
	from, hostPort := uint16(1024), uint16(0)
	nettest.Eventually(t, "the pod to have some ports", func() bool {
		for range 50 {
			w.send(ether(evil.mac, w.mac, udpPacket(evil.ip4, lan4, from, to, "hear me")))
			from++
		}
		for hostPort = range given(t, evil.ip4, udp, to) {
		}
		return hostPort != 0
	})
	heir, err := n.tryAdd("heir", fmt.Sprintf(`"runtimeConfig":{"portMappings":[{"hostPort":%d,"containerPort":7777,"protocol":"udp"}]}`, hostPort))
	must(t, err)
	nettest.Serve(t, heir.at, "udp4", netip.AddrPortFrom(heir.ip4, 7777).String())
	var peer *net.UDPConn
	must(t, n.lan.Do(func() (err error) {
		peer, err = net.ListenUDP("udp4", &net.UDPAddr{IP: lan4.AsSlice(), Port: to})
		return err
	}))
	defer peer.Close()
	nettest.Eventually(t, "the heir's answer", func() bool {
		for f := uint16(1024); f < from; f++ {
			w.send(ether(evil.mac, w.mac, udpPacket(evil.ip4, lan4, f, to, "hear me")))
		}
		_, err := peer.WriteToUDP([]byte("?"), &net.UDPAddr{IP: node4.AsSlice(), Port: int(hostPort)})
		must(t, err)
		for b := make([]byte, 64); ; {
			must(t, peer.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
			k, who, err := peer.ReadFromUDP(b)
			if err != nil {
				return false
			}
			if who.Port == int(hostPort) && string(b[:k]) != "hear me" {
				return true
			}
		}
	})
	if given(t, evil.ip4, udp, to)[hostPort] {
		t.Errorf("the pod still has the heir's host port %d", hostPort)
	}
}

// The agent refuses a pod that asks for more host ports than masquerade can do without. A pod that asks
// for a quarter of masquerade's ports gets them.
func TestHostPortsLeaveMasquerade(t *testing.T) {
	n := newNode(t, fewPorts)
	ports := func(n int) (list string) {
		for i := range n {
			list += fmt.Sprintf(`,{"hostPort":%d,"containerPort":7777,"hostIP":"0.0.0.0"}`, 20000+i)
		}
		return `"runtimeConfig":{"portMappings":[` + list[1:] + `]}`
	}
	if _, err := n.tryAdd("evil", ports(257)); err == nil || !strings.Contains(err.Error(), "20000-21023") {
		t.Errorf("a pod with 257 host ports of 1024: %v", err)
	}
	_, err := n.tryAdd("good", ports(256))
	must(t, err)
}

// A pod with a UDP host port comes, to which a machine outside has sent before. The agent deletes
// that flow to the node, and leaves flows between other pods as they are: a deleted flow begins
// anew with the pod that sends next, and counts for that pod.
func TestHostPortsLeaveOthersFlows(t *testing.T) {
	n := newNode(t, plain)
	client, server := n.add("client"), n.add("server")
	const hostPort, service = 9999, 7000
	ask := func(at *ns.Netns, to netip.AddrPort) {
		must(t, at.Do(func() error {
			conn, err := net.Dial("udp4", to.String())
			if err != nil {
				return err
			}
			defer conn.Close()
			_, err = conn.Write([]byte("?"))
			return err
		}))
	}
	flows := func(to netip.AddrPort) (n int) {
		for _, f := range nettest.List(t, func() ([]*netlink.ConntrackFlow, error) {
			return netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
		}) {
			if dst, _ := netip.AddrFromSlice(f.Forward.DstIP); dst.Unmap() == to.Addr() && f.Forward.DstPort == to.Port() && f.Forward.Protocol == udp {
				n++
			}
		}
		return n
	}
	outside, inside := netip.AddrPortFrom(node4, hostPort), netip.AddrPortFrom(server.ip4, service)
	nettest.Serve(t, server.at, "udp4", inside.String())
	ask(n.lan, outside)
	ask(client.at, inside)
	nettest.Eventually(t, "both flows", func() bool { return flows(outside) == 1 && flows(inside) == 1 })
	_, err := n.tryAdd("heir", fmt.Sprintf(`"runtimeConfig":{"portMappings":[{"hostPort":%d,"containerPort":7777,"protocol":"udp"}]}`, hostPort))
	must(t, err)
	nettest.Eventually(t, "the flow to the node to be deleted", func() bool { return flows(outside) == 0 })
	if flows(inside) != 1 {
		t.Error("the flow between other pods is gone, too")
	}
}
