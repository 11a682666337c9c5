package hostile

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

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
		if !remembered(t, udp, at) {
			t.Fatalf("the kernel remembers nothing of %s", at)
		}
	}
	n.Crash()
	nettest.Run(t, nil, "ip link del "+former.host)
	heir := heirBehindALostLedger(t, n, former)
	for _, at := range []netip.Addr{heir.ip4, heir.ip6} {
		if remembered(t, udp, at) {
			t.Errorf("the kernel remembers the traffic that %s had before", at)
		}
	}
}

// The same, but a program of the node has TCP connections to the pod, and connection tracking has no entries
// of them: somebody has emptied the table, or rules keep such connections from being tracked. The kernel has
// ended the connections when the next pod has the address, so that nothing the program sends gets there.
func TestConnectionBehindALostLedger(t *testing.T) {
	n := newNode(t, "sweepInterval: 1h\npools:\n- {name: default, cidrs: [10.88.0.0/20, 'fd00:88::/64'], cooldown: 2s}\n")
	former := n.add("former")
	conns := map[netip.Addr]net.Conn{}
	for _, at := range []netip.Addr{former.ip4, former.ip6} {
		to := netip.AddrPortFrom(at, 7777).String()
		nettest.Accept(t, former.at, "tcp", to, func(c net.Conn) { t.Cleanup(func() { c.Close() }) })
		// Without probes (KeepAlive), because each makes an entry anew.
		c, err := (&net.Dialer{Timeout: nettest.Deadline, KeepAlive: -1}).Dial("tcp", to)
		must(t, err)
		t.Cleanup(func() { c.Close() })
		conns[at] = c
	}
	n.Crash()
	nettest.Run(t, nil, "ip link del "+former.host)
	must(t, netlink.ConntrackTableFlush(netlink.ConntrackTable))
	for at := range conns {
		if remembered(t, tcp, at) {
			t.Fatalf("connection tracking has an entry of %s", at)
		}
	}
	heir := heirBehindALostLedger(t, n, former)
	for at, c := range conns {
		if _, err := c.Write([]byte("for the former pod")); !errors.Is(err, unix.ECONNABORTED) {
			t.Errorf("the node's program sends to %s, which %s has: %v", at, heir.host, err)
		}
	}
}

// heirBehindALostLedger deletes the ledger of an agent that does not run, starts the agent, and makes a pod
// when the pools give out addresses again. The pod has the former pod's addresses.
func heirBehindALostLedger(t *testing.T, n *node, former *pod) (heir *pod) {
	t.Helper()
	must(t, os.Remove(root.Dir(n.Root).Ledger()))
	n.Again()
	nettest.Eventually(t, "an address", func() bool {
		var err error
		heir, err = n.tryAdd("heir")
		return err == nil
	})
	if heir.ip4 != former.ip4 || heir.ip6 != former.ip6 {
		t.Fatalf("the heir has %s and %s, not %s and %s", heir.ip4, heir.ip6, former.ip4, former.ip6)
	}
	return heir
}

// remembered reports whether connection tracking has an entry of a protocol to or from an address.
func remembered(t *testing.T, protocol uint8, a netip.Addr) bool {
	t.Helper()
	all := nettest.List(t, func() ([]*netlink.ConntrackFlow, error) {
		return netlink.ConntrackTableList(netlink.ConntrackTable, family(a))
	})
	for _, f := range all {
		dst, _ := netip.AddrFromSlice(f.Forward.DstIP)
		src, _ := netip.AddrFromSlice(f.Forward.SrcIP)
		if f.Forward.Protocol == protocol && (dst.Unmap() == a || src.Unmap() == a) {
			return true
		}
	}
	return false
}
