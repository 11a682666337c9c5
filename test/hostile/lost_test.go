package hostile

import (
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
)

// The ledger is lost while no agent runs, and the pod that it knew goes. When the pools give out addresses
// again, the next pod gets the former pod's address, and nothing that the kernel remembers of the former
// pod's traffic.
func TestAddressBehindALostLedger(t *testing.T) {
	n := newNode(t, "sweepInterval: 1h\npools:\n- {name: default, cidrs: [10.88.0.0/20, 'fd00:88::/64'], cooldown: 2s}\n")
	former := n.add("former")
	for _, at := range []netip.Addr{former.ip4, former.ip6} {
		to := netip.AddrPortFrom(at, 7777)
		nettest.Serve(t, former.at, "udp", to.String())
		_, err := nettest.Talk(nil, "udp", to, 10*time.Second)
		must(t, err)
		if !remembered(t, at) {
			t.Fatalf("the kernel remembers nothing of %s", at)
		}
	}
	n.Crash()
	must(t, os.Remove(root.Dir(n.Root).Ledger()))
	nettest.Run(t, nil, "ip link del "+former.host)
	n.Again()
	var heir *pod
	nettest.Eventually(t, "an address", func() (ok bool) {
		var err error
		heir, err = n.tryAdd("heir")
		return err == nil
	})
	if heir.ip4 != former.ip4 || heir.ip6 != former.ip6 {
		t.Fatalf("the heir has %s and %s, not %s and %s", heir.ip4, heir.ip6, former.ip4, former.ip6)
	}
	for _, at := range []netip.Addr{heir.ip4, heir.ip6} {
		if remembered(t, at) {
			t.Errorf("the kernel remembers the traffic that %s had before", at)
		}
	}
}

// remembered reports whether connection tracking has an entry of datagrams to or from an address.
func remembered(t *testing.T, a netip.Addr) bool {
	t.Helper()
	all := nettest.List(t, func() ([]*netlink.ConntrackFlow, error) {
		return netlink.ConntrackTableList(netlink.ConntrackTable, family(a))
	})
	for _, f := range all {
		dst, _ := netip.AddrFromSlice(f.Forward.DstIP)
		src, _ := netip.AddrFromSlice(f.Forward.SrcIP)
		if f.Forward.Protocol == udp && (dst.Unmap() == a || src.Unmap() == a) {
			return true
		}
	}
	return false
}
