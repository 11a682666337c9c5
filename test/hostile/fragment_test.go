package hostile

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/nettest"
)

// A pod sends the end of a datagram with another pod's address before the other pod sends its own end:
// the node puts fragments together by the source that they name, whatever link they came by.
// The other pod's peer hears no part of the forged fragment, and the fragment takes none of the
// node's room for fragments.
func TestFragmentsOfOthersAreNotPutTogether(t *testing.T) {
	n := newNode(t, plain)
	liar, talker, peer := n.add("liar"), n.add("talker"), n.add("peer")
	lies, talks := liar.wire(t), talker.wire(t)
	fromLiar, fromTalker := newProbe(t, liar.host), newProbe(t, talker.host)

	const head, tail = "What I say, I say myself", "to you alone, and nobody"
	lie := tail[12:] + tail[:12] // which has the same checksum
	for _, addr := range []func(*pod) netip.Addr{(*pod).addr4, (*pod).addr6} {
		src, dst := addr(talker), addr(peer)
		heard := peer.datagrams(t, dst)
		first, last := fragments(src, dst, head, tail)
		_, lied := fragments(src, dst, head, lie)

		lies.send(ether(liar.mac, lies.mac, lied))
		fromLiar.settled(lies, liar)
		talks.send(ether(talker.mac, talks.mac, first))
		fromTalker.settled(talks, talker)
		talks.send(ether(talker.mac, talks.mac, last))
		if got := <-heard; got != head+tail {
			t.Errorf("from %s comes %q, and %q was sent", src, got, head+tail)
		}
	}
}

// A machine of the LAN sends the end of a datagram in a pod's name before that pod sends its
// own, on a node that checks no paths (rp_filter). The pod's peer hears no part of the forged
// fragment. The node puts fragments together that the machine sends in its own name.
func TestFragmentsFromLanAreNotPutTogether(t *testing.T) {
	n := newNode(t, plain)
	for _, link := range []string{"all", "up0"} {
		sysctl(t, "ipv4/conf/"+link+"/rp_filter", "0")
	}
	talker, peer := n.add("talker"), n.add("peer")
	lies, talks := n.uplinkWire(t), talker.wire(t)
	fromLan, fromTalker := newProbe(t, "up0"), newProbe(t, talker.host)
	const head, tail = "What I say, I say myself", "to you alone, and nobody"
	lie := tail[12:] + tail[:12] // which has the same checksum
	for _, way := range []struct {
		addr func(*pod) netip.Addr
		own  netip.Addr
	}{{(*pod).addr4, lan4}, {(*pod).addr6, lan6}} {
		src, dst := way.addr(talker), way.addr(peer)
		heard := peer.datagrams(t, dst)
		first, last := fragments(src, dst, head, tail)
		_, lied := fragments(src, dst, head, lie)
		lies(lied)
		nettest.Eventually(t, "what the machine sends behind it", func() bool {
			lies(packet(way.own, dst, marker, make([]byte, 8)))
			return slices.ContainsFunc(fromLan.passed(through), func(s string) bool {
				return s == fmt.Sprint(way.own, " ", dst, " ", marker)
			})
		})
		talks.send(ether(talker.mac, talks.mac, first))
		fromTalker.settled(talks, talker)
		talks.send(ether(talker.mac, talks.mac, last))
		if got := <-heard; got != head+tail {
			t.Errorf("from %s comes %q, and %q was sent", src, got, head+tail)
		}

		heard = peer.datagrams(t, dst)
		first, last = fragments(way.own, dst, head, tail)
		lies(first)
		lies(last)
		if got := <-heard; got != head+tail {
			t.Errorf("from %s comes %q, and %q was sent", way.own, got, head+tail)
		}
	}
}

// A pod that goes has sent the end of a datagram and nothing else of it, which the kernel
// keeps. The next pod with its address sends the beginning of a datagram: a third pod hears no part of
// the dead pod's fragment. Kernels keep fragments for a second here, and for less than the
// default cooldown elsewhere.
func TestFragmentsOfTheDeadAreNotPutTogether(t *testing.T) {
	for _, kept := range []string{"net/ipv4/ipfrag_time", "net/ipv6/ip6frag_time", "net/netfilter/nf_conntrack_frag6_timeout"} {
		if seconds := kernelInt(t, kept); time.Duration(seconds)*time.Second >= config.DefaultCooldown {
			t.Errorf("%s is %d s, and the default cooldown %s", kept, seconds, config.DefaultCooldown)
		}
		must(t, os.WriteFile("/proc/sys/"+kept, []byte("1"), 0))
	}
	n := newNode(t, "cooldown: 2s\n"+plain+"- {name: one, cidrs: [10.99.0.7/32, 'fd00:99::7/128']}\n")
	peer := n.add("peer")
	dead, err := n.tryAdd("dead", `"pool":"one"`)
	must(t, err)
	const head, tail = "What I say, I say myself", "to you alone, and nobody"
	lie := tail[12:] + tail[:12] // which has the same checksum
	lies, fromDead := dead.wire(t), newProbe(t, dead.host)
	for _, addr := range []func(*pod) netip.Addr{(*pod).addr4, (*pod).addr6} {
		_, last := fragments(addr(dead), addr(peer), head, lie)
		lies.send(ether(dead.mac, lies.mac, last))
	}
	fromDead.settled(lies, dead)
	n.del(dead, wait)

	var heir *pod
	nettest.Eventually(t, "the address to have rested", func() bool {
		heir, err = n.tryAdd("heir", `"pool":"one"`)
		return err == nil
	})
	if heir.ip4 != dead.ip4 || heir.ip6 != dead.ip6 {
		t.Fatalf("the heir has %s and %s, and the dead had %s and %s", heir.ip4, heir.ip6, dead.ip4, dead.ip6)
	}
	talks, fromHeir := heir.wire(t), newProbe(t, heir.host)
	for _, addr := range []func(*pod) netip.Addr{(*pod).addr4, (*pod).addr6} {
		heard := peer.datagrams(t, addr(peer))
		first, last := fragments(addr(heir), addr(peer), head, tail)
		talks.send(ether(heir.mac, talks.mac, first))
		fromHeir.settled(talks, heir)
		talks.send(ether(heir.mac, talks.mac, last))
		if got := <-heard; got != head+tail {
			t.Errorf("from %s comes %q, and %q was sent", addr(heir), got, head+tail)
		}
	}
	n.wantGone()
}

func (p *pod) addr4() netip.Addr { return p.ip4 }
func (p *pod) addr6() netip.Addr { return p.ip6 }

// datagrams hears the first datagram that comes to an address of the pod's, and sends the datagram's
// text to the channel. By then nobody listens at the address any more.
func (p *pod) datagrams(t *testing.T, at netip.Addr) <-chan string {
	t.Helper()
	var conn *net.UDPConn
	must(t, p.at.Do(func() (err error) {
		conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(at, floodPort)))
		return err
	}))
	heard := make(chan string, 1)
	must(t, conn.SetReadDeadline(time.Now().Add(nettest.Deadline)))
	go func() {
		buf := make([]byte, 256)
		n, _, err := conn.ReadFromUDPAddrPort(buf)
		conn.Close() // before the channel gets the text: the receiver may listen at that address again
		if err != nil {
			heard <- err.Error()
			return
		}
		heard <- string(buf[:n])
	}()
	return heard
}

// fragments are the two fragments of a datagram; the first ends with head, whose
// length is a multiple of 8 bytes.
func fragments(src, dst netip.Addr, head, tail string) (first, last []byte) {
	const headerBytes = 8
	whole := udpPacket(src, dst, floodPort, floodPort, head+tail)
	cut := headerBytes + len(head)
	if src.Is4() {
		whole = whole[20:]
		return packet4(src, dst, udp, whole[:cut], nil, 1<<13), packet4(src, dst, udp, whole[cut:], nil, uint16(cut/8))
	}
	whole = whole[40:]
	fragment := func(offset uint16, part []byte) []byte { // RFC 8200, 4.5
		h := binary.BigEndian.AppendUint16([]byte{udp, 0}, offset)
		return packet(src, dst, 44, slices.Concat(h, []byte{0, 0, 0, 1}, part))
	}
	return fragment(1, whole[:cut]), fragment(uint16(cut), whole[cut:])
}
