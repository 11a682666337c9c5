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

// Somebody else has attached a pod with an address of the pool: a stranger. No ADD gets the address,
// whether or not it asks for it, and the stranger's connections stay, also those that no route keeps apart
// from the pool. Once the stranger is gone, the agent deletes the stranger's flows before it gives the
// address to a pod.
func TestStrangersConnectionsStay(t *testing.T) {
	r := newRig(t, "default=10.88.0.6/31")
	r.cooldown = time.Millisecond
	r.begin()
	theirs := netip.MustParseAddr("10.88.0.6")
	if got := r.add(request("first", nettest.Pod(t))).IPs[0].Address.IP.String(); got == theirs.String() {
		theirs = theirs.Next()
	}
	for _, c := range []string{"ip link add other type veth peer name other2", "ip link set other2 up", "ip link set other up", "ip route add " + theirs.String() + "/32 dev other metric 50"} {
		nettest.Run(t, nil, c)
	}
	left := func() { nettest.Run(t, nil, "ip link del other") }
	defer func() { left() }()
	track(t, netip.MustParseAddr("192.0.2.1"), theirs)

	_, err := r.tryAdd(request("a", nettest.Pod(t), `"runtimeConfig":{"ips":["`+theirs.String()+`"]}`))
	wantError(t, err, 101, "somebody else's")
	_, err = r.tryAdd(request("b", nettest.Pod(t)))
	wantError(t, err, 100, "no free IPv4 address")
	if !tracked(t, theirs) {
		t.Error("an ADD has taken the stranger's entry")
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
