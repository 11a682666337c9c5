package rtnl_test

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/nettest"
)

// A machine on the link comes to have another network card, and tells nobody. The kernel goes on sending to the former one, until
// somebody has it ask anew. Neighbours that somebody has set for good stay as they are.
func TestAskAnew(t *testing.T) {
	c := open(t, nil)
	nettest.Program(t, "ip")
	l, far := veth(t, c, "veth0")
	for _, n := range []string{"192.0.2.%d/24", "2001:db8::%d/64"} {
		nettest.Run(t, nil, fmt.Sprintf("ip addr add "+n+" dev veth0 nodad", 1))
		nettest.Run(t, far, fmt.Sprintf("ip addr add "+n+" dev eth0 nodad", 11))
	}
	others := []netip.Addr{addr("192.0.2.11"), addr("2001:db8::11")}
	set := addr("192.0.2.12")
	mac, err := net.ParseMAC("02:00:00:00:00:12")
	must(t, err)
	must(t, c.Do(rtnl.SetNeighbour(set, mac, l.Index)))
	for _, a := range others {
		nettest.Ping(t, nil, a)
	}
	nettest.Sysctl(t, far, "ipv6/conf/eth0/ndisc_notify", "0")
	nettest.Run(t, far, "ip link set eth0 address 02:00:00:00:00:99")
	nettest.Run(t, nil, "ip neigh replace 192.0.2.11 lladdr 02:00:00:00:00:01 dev veth0 nud reachable") // the former card, as if no ARP had told of the other one
	nettest.Run(t, nil, "ip neigh replace 2001:db8::11 lladdr 02:00:00:00:00:01 dev veth0 nud reachable")
	for _, a := range others {
		nettest.NoPing(t, nil, a)
	}
	must(t, c.AskAnew(append(others, set, addr("192.0.2.1"), addr("192.0.2.77"), addr("203.0.113.1"))))
	for _, a := range others {
		must(t, nettest.Echo(nil, a, 5*time.Second)) // much sooner than the kernel would ask again by itself
	}
	var n rtnl.Neighbour
	must(t, c.Do(rtnl.GetNeighbour(set, l.Index, &n)))
	if n.MAC != mac.String() {
		t.Errorf("the permanent neighbour is %+v", n)
	}
}
