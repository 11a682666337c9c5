package node

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
)

// Nobody hears a pod that sends with another's address, and the pod leaves no connection
// tracking entry in the other's name. Others hear the pod if it sends with its own address, or
// with an address that somebody routes to it on purpose.
func TestSpoofedSource(t *testing.T) {
	hasAddresses(t)
	a := newAgent(t, nil, pools)
	a.start()
	t.Cleanup(func() { a.releaseAll(); a.remove() }) // what was routed on purpose leaves traces, which are not Berth's
	pods, got := a.podsOf(3)
	ears := append(listen(t, pods[0], got[0].addrs...), listen(t, nil, nodeAddrs...)...)
	victim, routed := got[2].addrs, netip.MustParseAddr("203.0.113.9")
	nettest.Run(t, nil, fmt.Sprintf("ip route add %s dev %s", routed, got[1].host)) // goes with the link
	for _, addr := range append(victim, routed, netip.MustParseAddr("192.0.2.77")) {
		nettest.Run(t, pods[1], fmt.Sprintf("ip addr add %s dev lo", addr))
	}
	say := func(from netip.Addr) {
		t.Helper()
		for _, e := range ears {
			if e.at.Addr().Is4() != from.Is4() {
				continue
			}
			inside(t, pods[1], func() error {
				conn, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0)), net.UDPAddrFromAddrPort(e.at))
				if err != nil {
					return nil // an IPv6 address is not usable yet: the caller says it again
				}
				defer conn.Close()
				_, _ = conn.Write([]byte("?"))
				return nil
			})
		}
	}
	for range 20 {
		for _, addr := range append(victim, netip.MustParseAddr("192.0.2.77")) {
			say(addr)
		}
	}
	for _, own := range append(got[1].addrs, routed) { // behind the forged packets in the same queues
		nettest.Eventually(t, fmt.Sprint(own, " to be heard"), func() bool {
			say(own)
			for _, e := range ears {
				if e.at.Addr().Is4() == own.Is4() && !e.hears(own) {
					return false
				}
			}
			return true
		})
	}
	tracked := nettest.Snapshot(t, nil).Only("conntrack").String()
	for _, addr := range append(victim, netip.MustParseAddr("192.0.2.77")) {
		for _, e := range ears {
			if e.hears(addr) {
				t.Errorf("%s hears %s, which another pod said", e.at, addr)
			}
		}
		if strings.Contains(tracked, fmt.Sprintf("src %s ", addr)) {
			t.Errorf("an entry in the name of %s:\n%s", addr, tracked)
		}
	}
}
