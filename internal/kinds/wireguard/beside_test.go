package wireguard_test

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
)

// heard sends a datagram from an address at one place to an address at another, and says whether it came.
func heard(t testing.TB, at *ns.Netns, from netip.Addr, to *ns.Netns, addr netip.Addr) bool {
	t.Helper()
	var in *net.UDPConn
	must(t, to.Do(func() (err error) {
		in, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
		return err
	}))
	defer in.Close()
	port := in.LocalAddr().(*net.UDPAddr).AddrPort().Port()
	must(t, at.Do(func() error {
		out, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0)), net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, port)))
		if err != nil {
			return err
		}
		defer out.Close()
		for range 3 { // the first one may wait for a neighbour
			if _, err := out.Write([]byte("x")); err != nil {
				return err
			}
		}
		return nil
	}))
	must(t, in.SetReadDeadline(time.Now().Add(500*time.Millisecond)))
	_, source, err := in.ReadFromUDPAddrPort(make([]byte, 8))
	return err == nil && source.Addr() == from
}

// Nodes' own addresses are beside the tunnel: what a pod gets from them under its own address does not come out of the tunnel, which is
// why Berth masquerades what pods send there (package peers, Reached). And the tunnel keeps nobody on the segment from sending in clear, in
// the name of another node's pod: by IPv4, rp_filter can.
func TestBesideTheTunnel(t *testing.T) {
	_, all := stations(t, 3)
	a, b, c := all[0], all[1], all[2]
	a.reach(t, b)
	b.reach(t, a)
	talks(t, a, b)
	pod := b.pods()[0]
	if !heard(t, a.at, a.pods()[0], b.at, pod) {
		t.Error("a pod does not hear a pod")
	}
	if !heard(t, a.at, a.address(false), b.at, b.address(false)) {
		t.Error("a node does not hear a node")
	}
	if heard(t, a.at, a.address(false), b.at, pod) {
		t.Error("a pod hears a node's own address: nothing need be masqueraded")
	}

	for i, forged := range b.pods() {
		victim := a.pods()[i]
		bits, way := "/32", a.address(false)
		if victim.Is6() {
			bits, way = "/128", a.address(true)
		}
		nettest.Run(t, c.at, "ip addr add "+forged.String()+bits+" dev lo")
		nettest.Run(t, c.at, "ip route add "+victim.String()+bits+" via "+way.String()+" dev eth0")
		if !heard(t, c.at, c.address(victim.Is6()), a.at, way) { // which also tells c where way is: a forged question would be answered by the tunnel
			t.Errorf("node 3 does not reach %s", way)
		}
		for _, strict := range []string{"0", "1"} {
			nettest.Sysctl(t, a.at, "ipv4/conf/eth0/rp_filter", strict)
			if came, want := heard(t, c.at, forged, a.at, victim), strict == "0" || victim.Is6(); came != want {
				t.Errorf("rp_filter %s: the pod %s hears a forged %s: %t, want %t (docs/SECURITY.md)", strict, victim, forged, came, want)
			}
		}
	}
}
