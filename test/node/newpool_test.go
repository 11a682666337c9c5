package node

import (
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/berth-net/berth/internal/nettest"
)

// A reload brings a pool. The kernel remembers traffic of an address that a pod of another program had
// before. Whoever gets the address gets nothing of that traffic.
func TestNewPoolsFormerTraffic(t *testing.T) {
	const without = "pools:\n- {name: b, cidrs: [10.89.0.0/24]}\n"
	a := newAgent(t, nil)
	a.configure(without)
	a.startWatched()
	at := netip.MustParseAddr("10.88.0.7")
	nettest.Run(t, nil, "ip link add former type veth peer name inside")
	for _, end := range []string{"former", "inside"} {
		nettest.Run(t, nil, "ip link set "+end+" up")
	}
	nettest.Run(t, nil, "ip route add 10.88.0.0/24 dev former")
	nettest.Run(t, nil, "ip neigh add 10.88.0.7 lladdr 02:00:00:00:00:07 dev former")
	client, err := net.Dial("udp", "10.88.0.7:7777")
	must(t, err)
	defer client.Close()
	_, err = client.Write([]byte("to the former pod"))
	must(t, err)
	nettest.Eventually(t, "the kernel remembers the traffic", func() bool { return tracked(t, at) })
	nettest.Run(t, nil, "ip link del former")

	a.configure(without + "- {name: a, cidrs: [10.88.0.7/32]}\n")
	a.reload(inForce)
	if tracked(t, at) {
		t.Error("the kernel remembers the traffic when the pool is in force")
	}
	a.add("heir", nettest.Pod(t), `"pool":"a"`)
}

// tracked reports whether connection tracking has an entry that begins with packets to an address.
func tracked(t *testing.T, to netip.Addr) bool {
	t.Helper()
	all := nettest.List(t, func() ([]*netlink.ConntrackFlow, error) {
		return netlink.ConntrackTableList(netlink.ConntrackTable, netlink.FAMILY_V4)
	})
	for _, f := range all {
		if dst, _ := netip.AddrFromSlice(f.Forward.DstIP); dst.Unmap() == to {
			return true
		}
	}
	return false
}
