package nettest

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/berth-net/berth/internal/kernel/ns"
)

// wire joins two namespaces by a veth pair, with 192.0.2.1 and fd00::1 in a, and .2 and ::2
// in b.
func wire(t *testing.T, a, b *ns.Netns) {
	t.Helper()
	up := func(name string, addresses ...string) error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		if err := ns.SetSysctl("ipv6/conf/"+name+"/accept_dad", "0"); err != nil { // saves a second of waiting
			return err
		}
		for _, address := range addresses {
			addr := &netlink.Addr{IPNet: cidr(t, address), Flags: 2} // IFA_F_NODAD
			if err := netlink.AddrAdd(link, addr); err != nil {
				return err
			}
		}
		return netlink.LinkSetUp(link)
	}
	err := a.Do(func() error {
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "wire0"}, PeerName: "wire1", PeerNamespace: netlink.NsFd(b.Fd())}
		if err := netlink.LinkAdd(veth); err != nil {
			return err
		}
		return up("wire0", "192.0.2.1/24", "fd00::1/64")
	})
	if err == nil {
		err = b.Do(func() error { return up("wire1", "192.0.2.2/24", "fd00::2/64") })
	}
	Must(t, err)
}

func TestPing(t *testing.T) {
	a, b := Node(t), Node(t)
	wire(t, a, b)
	for _, to := range []string{"192.0.2.2", "fd00::2", "192.0.2.1", "::1", "127.0.0.1"} {
		Ping(t, a, netip.MustParseAddr(to))
	}
	Ping(t, nil, netip.MustParseAddr("127.0.0.1"))

	var local netip.Addr
	b.Do(func() error {
		link, err := net.InterfaceByName("wire1")
		if err != nil {
			return err
		}
		addrs, err := link.Addrs()
		for _, addr := range addrs {
			if p := netip.MustParsePrefix(addr.String()); p.Addr().IsLinkLocalUnicast() {
				local = p.Addr()
			}
		}
		return err
	})
	Ping(t, a, local.WithZone("wire0"))

	// Echo does not take others' echos, which every raw socket sees, for its own.
	Meanwhile(t, func() {
		Echo(a, netip.MustParseAddr("192.0.2.2"), quiet)
		Echo(a, netip.MustParseAddr("fd00::2"), quiet)
	})
	for _, to := range []string{"192.0.2.3", "198.51.100.1", "fd00::3"} {
		NoPing(t, a, netip.MustParseAddr(to))
	}
	for _, to := range []string{"192.0.2.2", "fd00::2"} {
		r := Record(t, func(t testing.TB) { NoPing(t, a, netip.MustParseAddr(to)) })
		if !r.Failed || !strings.Contains(r.Said, to) {
			t.Errorf("NoPing says %q of %s, which answers", r.Said, to)
		}
	}
	if err := Echo(a, local.WithZone("wire9"), time.Second); err == nil {
		t.Error("an echo by a missing interface is answered")
	}
}

func TestTalk(t *testing.T) {
	a, b := Node(t), Node(t)
	wire(t, a, b)
	for _, network := range []string{"tcp", "udp"} {
		for from, address := range map[string]string{"192.0.2.1": "192.0.2.2:0", "fd00::1": "[fd00::2]:0"} {
			port := Serve(t, b, network, address)
			Eventually(t, network+" from "+from, func() bool {
				seen, err := Talk(a, network, port, 200*time.Millisecond)
				if err == nil && seen.Addr().String() != from {
					t.Errorf("%s: seen at %s, not at %s", network, seen, from)
				}
				return err == nil
			})
			if _, err := Talk(nil, network, port, quiet); err == nil {
				t.Errorf("%s %s is reached from where no wire leads", network, port)
			}
		}
	}
}
