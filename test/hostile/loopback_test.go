package hostile

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/nettest"
)

// hostPort is the host port of loopbackPod, containerPort the pod's own.
const (
	hostPort      = 8080
	containerPort = 7777
)

// loopbackPod attaches a pod with a host port, and calls f for both families with the pod's address, the
// node's and the loopback's.
func loopbackPod(t *testing.T, proto string, f func(t *testing.T, n *node, a *pod, own, node, loop netip.Addr)) {
	n := newNode(t, plain)
	a, err := n.tryAdd("a", fmt.Sprintf(`"runtimeConfig":{"portMappings":[{"hostPort":%d,"containerPort":%d,"protocol":%q}]}`, hostPort, containerPort, proto))
	must(t, err)
	t.Run("127.0.0.1", func(t *testing.T) { f(t, n, a, a.ip4, node4, netip.MustParseAddr("127.0.0.1")) })
	t.Run("::1", func(t *testing.T) { f(t, n, a, a.ip6, node6, netip.IPv6Loopback()) })
	n.wantGone()
}

// bindUDP binds a port of an address of the node; 0 is any port.
func bindUDP(t *testing.T, at netip.Addr, port uint16) *net.UDPConn {
	t.Helper()
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(at, port)))
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

// asks is a set of Berth's table: the flows of UDP in which the node's programs have lately sent by a
// loopback address.
type asks struct {
	t          *testing.T
	table, set string
}

func (n *node) asks(t *testing.T, loop netip.Addr) asks {
	t.Helper()
	st, err := n.API.Status(t.Context(), "")
	must(t, err)
	if loop.Is6() {
		return asks{t, "inet berth-" + st.Instance, "asked6"}
	}
	return asks{t, "inet berth-" + st.Instance, "asked4"}
}

// end has the set's elements end at once, as they otherwise end with time.
func (a asks) end() { nft(a.t, fmt.Sprintf("flush set %s %s", a.table, a.set)) }

// lasts returns how long the only element of the set still lasts.
func (a asks) lasts() time.Duration {
	a.t.Helper()
	raw, err := exec.Command(nettest.Program(a.t, "nft"), append([]string{"-j", "list", "set"}, append(strings.Fields(a.table), a.set)...)...).Output()
	must(a.t, err)
	var answer struct {
		Nftables []struct {
			Set struct {
				Elem []struct{ Elem struct{ Expires int } }
			}
		}
	}
	must(a.t, json.Unmarshal(raw, &answer))
	for _, o := range answer.Nftables {
		if len(o.Set.Elem) == 1 {
			return time.Duration(o.Set.Elem[0].Elem.Expires) * time.Second
		}
	}
	a.t.Fatalf("not one element: %s", raw)
	return 0
}

// A program of the node asks a pod once, by the loopback and the pod's host port, and ends. The pod
// goes on sending, by which it renews the flow in connection tracking. The node's answers to that, ICMP
// errors, do not count as the program's packets. When the program has not sent for two minutes (here:
// when the set's element is gone), another program of the node has the port, and hears nothing of the
// pod. The pod is heard as soon as that program asks it.
func TestLaterProgramsOfTheLoopbackHearNothing(t *testing.T) {
	loopbackPod(t, "udp", func(t *testing.T, n *node, a *pod, own, node, loop netip.Addr) {
		network, proto := "udp4", byte(icmp4)
		if own.Is6() {
			network, proto = "udp6", icmp6
		}
		clients := make(chan net.Addr, 1)
		says := nettest.Hear(t, a.at, network, netip.AddrPortFrom(own, containerPort).String(), func(_ net.PacketConn, _ []byte, from net.Addr) { clients <- from })
		var client net.Addr
		ask := func(by *net.UDPConn) {
			_, err := by.WriteTo([]byte("?"), net.UDPAddrFromAddrPort(netip.AddrPortFrom(loop, hostPort)))
			must(t, err)
			select {
			case client = <-clients:
			case <-time.After(nettest.Deadline):
				t.Fatal("the pod is not asked")
			}
		}
		say := func(word string) {
			_, err := says.WriteTo([]byte(word), client)
			must(t, err)
		}
		wantHeard := func(by *net.UDPConn, word string) {
			t.Helper()
			must(t, by.SetReadDeadline(time.Now().Add(nettest.Deadline)))
			buf := make([]byte, 64)
			k, from, err := by.ReadFromUDPAddrPort(buf)
			if err != nil || string(buf[:k]) != word || from.Port() != hostPort {
				t.Errorf("the program hears %q of %s, %v, not %q", buf[:k], from, err, word)
			}
		}

		first := bindUDP(t, loop, 0)
		port := first.LocalAddr().(*net.UDPAddr).AddrPort().Port()
		ask(first)
		say("answer")
		wantHeard(first, "answer")
		first.Close()

		asked := n.asks(t, loop)
		asked.end()
		nft(t, fmt.Sprintf("add element %s %s { %d . %s . %d timeout 1h }", asked.table, asked.set, port, own, containerPort))
		heard := listen(t, a.at)
		nettest.Eventually(t, "an ICMP error of the node", func() bool {
			say("to nobody")
			return heard.count(func(s seen) bool { return s.dst == own && s.proto == proto }) > 0
		})
		if left := asked.lasts(); left < 30*time.Minute {
			t.Errorf("the pod's own packets renew its time: %s are left of an hour", left)
		}
		asked.end()

		later := bindUDP(t, loop, port)
		say("unasked")
		ask(later)
		say("asked")
		wantHeard(later, "asked")
		if left := asked.lasts(); left > 2*time.Minute {
			t.Errorf("the pod may answer for %s", left)
		}
	})
}

// A program of the node connects to a pod by the loopback and the pod's host port, and gives up: the pod
// does not answer. Then the pod begins a connection of its own in the direction of the answers, by
// a SYN or an INIT. It does not get to the program's port, where somebody else may listen by now. An
// answer does.
func TestPodsBeginNothingWithTheLoopback(t *testing.T) {
	for _, c := range []struct {
		network       string
		dial          func(t *testing.T, loop netip.Addr)
		begin, answer func(src, dst netip.Addr, to uint16) []byte
	}{
		{
			"tcp",
			func(t *testing.T, loop netip.Addr) {
				d := net.Dialer{Timeout: 100 * time.Millisecond}
				if _, err := d.Dial("tcp", netip.AddrPortFrom(loop, hostPort).String()); err == nil {
					t.Error("the pod answers")
				}
			},
			func(src, dst netip.Addr, to uint16) []byte {
				return tcpPacket(src, dst, containerPort, to, syn, 1000, 0)
			},
			func(src, dst netip.Addr, to uint16) []byte {
				return tcpPacket(src, dst, containerPort, to, syn|ack, 1000, 1)
			},
		},
		{
			"sctp",
			func(t *testing.T, loop netip.Addr) {
				network := fmt.Sprintf("ip4:%d", unix.IPPROTO_SCTP)
				if loop.Is6() {
					network = fmt.Sprintf("ip6:%d", unix.IPPROTO_SCTP)
				}
				conn, err := net.DialIP(network, &net.IPAddr{IP: loop.AsSlice()}, &net.IPAddr{IP: loop.AsSlice()})
				must(t, err)
				defer conn.Close()
				_, err = conn.Write(sctpChunk(4000, hostPort, 0, 1))
				must(t, err)
			},
			func(src, dst netip.Addr, to uint16) []byte {
				return packet(src, dst, unix.IPPROTO_SCTP, sctpChunk(containerPort, to, 0, 1))
			},
			func(src, dst netip.Addr, to uint16) []byte {
				return packet(src, dst, unix.IPPROTO_SCTP, sctpChunk(containerPort, to, initTag, 2))
			},
		},
	} {
		t.Run(c.network, func(t *testing.T) {
			loopbackPod(t, c.network, func(t *testing.T, n *node, a *pod, own, node, loop netip.Addr) {
				sysctl(t, "netfilter/nf_conntrack_tcp_be_liberal", "1")
				a.mute(t)
				c.dial(t, loop)
				to := replies(t, loop, c.network)
				w, p := a.wire(t), newProbe(t, a.host)
				arrives := func() bool { return p.toLoopback(loop, c.network) }
				w.send(ether(a.mac, w.mac, c.begin(own, node, to)))
				p.settled(w, a)
				if arrives() {
					t.Error("the pod begins a connection with the node's loopback")
				}
				nettest.Eventually(t, "an answer", func() bool {
					w.send(ether(a.mac, w.mac, c.answer(own, node, to)))
					return arrives()
				})
			})
		})
	}
}

// toLoopback reports whether a packet of a protocol, by its name, has passed to a loopback address.
func (p *probe) toLoopback(loop netip.Addr, proto string) bool {
	p.t.Helper()
	return slices.Contains(p.passed(into), fmt.Sprint(loop, " ", loop, " ", proto))
}

// replies returns the node's port to which the answers go in the connection that the loopback has begun
// with the host port: conntrack -L -p PROTO -f FAMILY -s LOOPBACK --dport HOSTPORT
func replies(t *testing.T, loop netip.Addr, proto string) uint16 {
	t.Helper()
	family := map[bool]string{false: "ipv4", true: "ipv6"}[loop.Is6()]
	out, err := exec.Command("conntrack", "-L", "-p", proto, "-f", family, "-s", loop.String(), "--dport", strconv.Itoa(hostPort)).Output()
	must(t, err)
	_, port, _ := strings.Cut(string(out), fmt.Sprintf("sport=%d dport=", containerPort))
	to, err := strconv.ParseUint(strings.Fields(port + " none")[0], 10, 16)
	if err != nil {
		t.Fatalf("the loopback has begun no connection: %s", out)
	}
	return uint16(to)
}

// initTag is the tag by which the packets of sctpChunk want to be answered.
const initTag = 0x01020304

// initChunk is the kind of an SCTP chunk that begins an association.
const initChunk = 1

// sctpChunk is an SCTP packet with a chunk of a kind (RFC 9260, 3.2), which has the length of an INIT and
// says what an INIT says.
func sctpChunk(from, to uint16, tag uint32, kind byte) []byte {
	b := binary.BigEndian
	m := b.AppendUint16(b.AppendUint16(nil, from), to)
	m = append(b.AppendUint32(m, tag), 0, 0, 0, 0)              // checksum
	m = append(m, kind, 0, 0, 20)                               // no flags, length
	m = b.AppendUint32(b.AppendUint32(m, initTag), 64<<10)      // window
	m = append(m, 0, 1, 0, 1, 0, 0, 0, 1)                       // streams out and in, first TSN
	sum := crc32.Checksum(m, crc32.MakeTable(crc32.Castagnoli)) // RFC 9260, appendix A
	binary.LittleEndian.PutUint32(m[8:], sum)
	return m
}
