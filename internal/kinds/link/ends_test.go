package link

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/nettest"
)

var must = nettest.Must

// FindEnds finds a pod with a long list of interfaces, or of addresses, all the same, and keeps next to
// nothing of the lists.
func TestFindPodsLongLists(t *testing.T) {
	nettest.Need(t)
	conn, err := rtnl.Open(nil)
	must(t, err)
	defer conn.Close()
	pod := nettest.Pod(t)
	must(t, conn.Do(rtnl.AddVeth(rtnl.End{Name: "host0"}, 0, rtnl.End{Name: "eth0"}, pod.Fd())))
	defer conn.Do(rtnl.DelLink("host0"))
	host, err := conn.Link("host0")
	must(t, err)
	inside, err := rtnl.Open(pod)
	must(t, err)
	defer inside.Close()
	var rs []rtnl.Request
	for i := range 2 * maxAddresses {
		rs = append(rs, rtnl.AddAddress(rtnl.Address{Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{20, 0, byte(i >> 8), byte(i)}), 32), Index: host.Peer}))
	}
	for i := range 20 {
		rs = append(rs, rtnl.AddVeth(rtnl.End{Name: fmt.Sprint("a", i)}, 0, rtnl.End{Name: fmt.Sprint("b", i)}, pod.Fd()))
	}
	must(t, inside.Do(rs...))
	seen, err := pod.Ref().Open()
	must(t, err)
	ends := lookInto(conn, seen, map[int]WantedEnd{host.Index: {Link: host}})
	if len(ends) != 1 || ends[0].link.Index != host.Peer || !ends[0].Netns.Same(pod.Ref()) || len(ends[0].Addresses) != maxKept {
		t.Errorf("the other ends of %+v are %+v", host, ends)
	}
	self, err := ns.Self()
	must(t, err)
	defer self.Close()
	if found := FindEnds(self.Ref(), []WantedEnd{{Link: host}}); !found["host0"].Netns.Same(pod.Ref()) {
		t.Errorf("found %+v", found)
	}
}

// A pod makes a veth with the index and the MAC of another pod's, whose other end has, in
// a third namespace, the index of that pod's link: FindEnds does not take that veth for the link's
// other end.
func TestFindPodsDecoy(t *testing.T) {
	nettest.Need(t)
	conn, err := rtnl.Open(nil)
	must(t, err)
	defer conn.Close()
	pod, liar, far := nettest.Pod(t), nettest.Pod(t), nettest.Pod(t)
	const mac = "02:00:00:00:00:07"
	hw, err := net.ParseMAC(mac)
	must(t, err)
	must(t, conn.Do(rtnl.AddVeth(rtnl.End{Name: "host0"}, 0, rtnl.End{Name: "eth0", MAC: hw}, pod.Fd())))
	defer conn.Do(rtnl.DelLink("host0"))
	host, err := conn.Link("host0")
	must(t, err)
	nettest.Run(t, liar, fmt.Sprintf("ip link add eth0 index %d address %s type veth peer name q index %d netns %s",
		host.Peer, mac, host.Index, filepath.Base(far.Ref().Path)))
	for _, at := range []*ns.Netns{pod, liar} {
		seen, err := at.Ref().Open()
		must(t, err)
		want := 0
		if at == pod {
			want = 1
		}
		if ends := lookInto(conn, seen, map[int]WantedEnd{host.Index: {Link: host, PodMAC: mac}}); len(ends) != want {
			t.Errorf("in %s: %+v, want %d", at.Ref(), ends, want)
		}
	}
}
