package agent

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/nettest"
)

// Somebody else has attached a pod with an address of the pool: a stranger. An ADD fails because of
// the stranger, and leaves the stranger's connections alone, both at the ADD's undo and when the
// address's rest ends. The agent deletes the tracked flows of the ADD's other address. Once the stranger
// is gone, the agent deletes the stranger's flows, too, before it gives the address to a pod.
func TestStrangersConnectionsStay(t *testing.T) {
	r := newRig(t, "default=10.88.0.1/32,fd00:88::1/128")
	r.cooldown = time.Millisecond
	r.begin()
	r.restart() // the pool is not new any more (ipam.Tainted), so that the ADD comes upon the stranger
	theirs, free := netip.MustParseAddr("10.88.0.1"), netip.MustParseAddr("fd00:88::1")
	for _, c := range []string{"ip link add other type veth peer name other2", "ip link set other2 up", "ip link set other up", "ip route add 10.88.0.1/32 dev other"} {
		nettest.Run(t, nil, c)
	}
	left := func() { nettest.Run(t, nil, "ip link del other") }
	defer func() { left() }()
	track(t, netip.MustParseAddr("192.0.2.1"), theirs)
	track(t, netip.MustParseAddr("2001:db8::1"), free)

	_, err := r.tryAdd(request("a", nettest.Pod(t)))
	wantError(t, err, 101, "10.88.0.1")
	nettest.Eventually(t, "the failed ADD is undone", func() bool { return len(r.index.All()) == 0 })
	if !tracked(t, theirs) || tracked(t, free) {
		t.Errorf("after the failed ADD: the stranger's entry is there: %t, want true; that of the ADD's other address: %t, want false",
			tracked(t, theirs), tracked(t, free))
	}
	nettest.Eventually(t, "the address's rest is over, as far as its cooldown goes", func() bool {
		return r.core.Clock.Now().After(r.core.Ledger.Resting()[0].Until)
	})
	_, err = r.tryAdd(request("b", nettest.Pod(t)))
	wantError(t, err, 100, "no free IPv4 address")
	if !tracked(t, theirs) {
		t.Error("the end of the rest has taken the stranger's entry")
	}

	left()
	left = func() {}
	r.restart() // a new agent looks at once
	r.add(request("c", nettest.Pod(t)))
	if tracked(t, theirs) {
		t.Error("a pod has the address, and the kernel remembers what it was before")
	}
}

// track makes a connection tracking entry of UDP.
func track(t *testing.T, from, to netip.Addr) {
	t.Helper()
	family := netlink.InetFamily(unix.AF_INET)
	if to.Is6() {
		family = unix.AF_INET6
	}
	must(t, netlink.ConntrackCreate(netlink.ConntrackTable, family, &netlink.ConntrackFlow{
		FamilyType: uint8(family), TimeOut: 600,
		Forward: netlink.IPTuple{SrcIP: from.AsSlice(), DstIP: to.AsSlice(), SrcPort: 1000, DstPort: 53, Protocol: unix.IPPROTO_UDP},
		Reverse: netlink.IPTuple{SrcIP: to.AsSlice(), DstIP: from.AsSlice(), SrcPort: 53, DstPort: 1000, Protocol: unix.IPPROTO_UDP},
	}))
}

// tracked reports whether connection tracking has an entry of an address.
func tracked(t *testing.T, a netip.Addr) bool {
	t.Helper()
	return strings.Contains(nettest.Snapshot(t, nil).Only("conntrack").String(), "dst "+a.String()+" ")
}
