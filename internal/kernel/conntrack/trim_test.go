package conntrack_test

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel/conntrack"
	"github.com/berth-net/berth/internal/nettest"
)

// States of TCP (nf_conntrack_tcp.h).
const (
	established = 3
	lastAck     = 6
	timeWait    = 7
	closedByRST = 8
)

// enterTCP makes n entries of TCP connections in a state, from src to somebody outside, or to
// another address. A second address in other is the address into which NAT has translated the source.
func enterTCP(t *testing.T, src string, state uint8, n int, other ...string) {
	t.Helper()
	dst, back := "192.0.2.1", src
	var family netlink.InetFamily = unix.AF_INET
	if netip.MustParseAddr(src).Is6() {
		family, dst = unix.AF_INET6, "2001:db8::1"
	}
	switch len(other) {
	case 2:
		back = other[1]
		fallthrough
	case 1:
		dst = other[0]
	}
	for i := range uint16(n) {
		port := 1000*uint16(state) + i
		must(t, netlink.ConntrackCreate(netlink.ConntrackTable, family, &netlink.ConntrackFlow{
			FamilyType: uint8(family), TimeOut: 3600, ProtoInfo: &netlink.ProtoInfoTCP{State: state},
			Forward: netlink.IPTuple{SrcIP: raw(src), DstIP: raw(dst), SrcPort: port, DstPort: 80, Protocol: unix.IPPROTO_TCP},
			Reverse: netlink.IPTuple{SrcIP: raw(dst), DstIP: raw(back), SrcPort: 80, DstPort: port, Protocol: unix.IPPROTO_TCP},
		}))
	}
}

// If a pod has begun too many connections, Trim deletes closed ones until the pod has no
// more than it may have, and other connections only if the pod has too many without the closed ones.
// Trim counts both families together. It deletes no entries of a pod that has fewer, or of an address
// without a number.
func TestTrim(t *testing.T) {
	table := open(t)
	patient, greedy, modest, stranger := "10.88.0.1", "10.88.0.2", "10.88.0.3", "10.88.0.4"
	const patient6 = "fd00:88::1"
	enterTCP(t, patient, established, 20)
	enterTCP(t, patient, timeWait, 40)
	enterTCP(t, patient6, closedByRST, 40)
	enterTCP(t, greedy, established, 100)
	enterTCP(t, greedy, lastAck, 50)
	enterTCP(t, greedy, timeWait, 30)
	enterTCP(t, modest, timeWait, 50)
	enterTCP(t, stranger, timeWait, 200)
	for i := range 200 { // from outside
		enter(t, 0, 1+i, "192.0.2.1", patient, patient, "192.0.2.1")
	}
	had, most, err := table.Load()
	if err != nil || had < 20+40+40+100+50+30+50+200+200 || most < had {
		t.Fatalf("the table has %d entries of %d, %v", had, most, err)
	}
	whose := map[netip.Addr]int{}
	for a, n := range map[string]int{patient: 7, patient6: 7, greedy: 8, modest: 9} {
		whose[netip.MustParseAddr(a)] = n
	}
	bounds := conntrack.Bounds{Closed: 50, All: 120}

	over, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := table.Trim(over, whose, bounds); !errors.Is(err, context.Canceled) {
		t.Errorf("it goes on when its time is over: %v", err)
	}
	for _, want := range []map[int]int{{7: 50, 8: 60}, nil} { // the second time no pod has too many
		gone, err := table.Trim(context.Background(), whose, bounds)
		must(t, err)
		if !maps.Equal(gone, want) {
			t.Errorf("gone are %v, want %v", gone, want)
		}
	}
	left := map[string]map[uint8]int{}
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		flows := nettest.List(t, func() ([]*netlink.ConntrackFlow, error) {
			return netlink.ConntrackTableList(netlink.ConntrackTable, family)
		})
		for _, f := range flows {
			src := f.Forward.SrcIP.String()
			if left[src] == nil {
				left[src] = map[uint8]int{}
			}
			state := uint8(0)
			if tcp, ok := f.ProtoInfo.(*netlink.ProtoInfoTCP); ok {
				state = tcp.State
			}
			left[src][state]++
		}
	}
	if l := left[patient]; l[established] != 20 || l[timeWait]+left[patient6][closedByRST] != 30 {
		t.Errorf("left are %v and %v, want those that are open and 30 that are closed", l, left[patient6])
	}
	if l := left[greedy]; l[established]+l[lastAck] != 120 || l[timeWait] != 0 {
		t.Errorf("left are %v, want 120, and none that is closed", l)
	}
	if left[modest][timeWait] != 50 || left[stranger][timeWait] != 200 || left["192.0.2.1"][0] != 200 {
		t.Errorf("of others are left %v, %v, %v", left[modest], left[stranger], left["192.0.2.1"])
	}
	nettest.Eventually(t, "the count to be that of what is left", func() bool {
		now, _, err := table.Load()
		return err == nil && now == had-50-60
	})
}

// If Trim is to count what others have begun as well, an entry that goes to a pod counts for that
// pod, also by a service's address. An entry from pod to pod counts only for the pod that began
// it. Among entries that are alike, Trim first deletes those that others have begun; flows of UDP to another
// pod, which would go on as that pod's, come last.
func TestTrimCountsOthers(t *testing.T) {
	table := open(t)
	const pod, friend, node, outside, service = "10.88.0.2", "10.88.0.3", "192.0.2.9", "192.0.2.1", "10.96.0.1"
	serve := func(port int, src, dst string) { enterAt(t, 80, 0, port, src, dst, pod, src) }
	for i := range 40 {
		serve(1+i, outside, pod)
		serve(1001+i, node, service)
		serve(2001+i, friend, pod)
		enterAt(t, 80, 0, 3001+i, pod, outside, outside, node) // masqueraded
		enterAt(t, 80, 0, 4001+i, pod, friend, friend, pod)
	}
	whose := map[netip.Addr]int{netip.MustParseAddr(pod): 1, netip.MustParseAddr(friend): 2}
	for _, step := range []struct {
		b    conntrack.Bounds
		want map[int]int
		left [5]int // by thousands of ports
	}{
		{conntrack.Bounds{Closed: 80, All: 80}, nil, [5]int{40, 40, 40, 40, 40}},
		{conntrack.Bounds{Closed: 150, All: 150, Others: true}, map[int]int{1: 10}, [5]int{30, 40, 40, 40, 40}},
		{conntrack.Bounds{Closed: 100, All: 100, Others: true}, map[int]int{1: 50}, [5]int{0, 20, 40, 40, 40}},
		{conntrack.Bounds{Closed: 100, All: 100, Begun: 40, Others: true}, map[int]int{1: 40}, [5]int{0, 20, 40, 0, 40}},
		{conntrack.Bounds{Closed: 50, All: 50, Others: true}, map[int]int{1: 10}, [5]int{0, 10, 40, 0, 40}},
		{conntrack.Bounds{Closed: 30, All: 30, Others: true}, map[int]int{1: 20, 2: 10}, [5]int{0, 0, 30, 0, 30}},
	} {
		gone, err := table.Trim(context.Background(), whose, step.b)
		must(t, err)
		if !maps.Equal(gone, step.want) {
			t.Errorf("with %+v, gone are %v, want %v", step.b, gone, step.want)
		}
		flows := nettest.List(t, func() ([]*netlink.ConntrackFlow, error) {
			return netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
		})
		var left [5]int
		for _, f := range flows {
			left[f.Forward.SrcPort/1000]++
		}
		if left != step.left {
			t.Errorf("with %+v, left are %v, want %v", step.b, left, step.left)
		}
	}
}

// Flows to another pod by its host port are the last to go, too.
func TestTrimSparesFlowsByHostPorts(t *testing.T) {
	table := open(t)
	const pod, friend, node, outside = "10.88.0.2", "10.88.0.3", "192.0.2.9", "192.0.2.1"
	for i := range 40 {
		enterAt(t, 80, 0, 1+i, pod, outside, outside, node) // masqueraded
		enterAt(t, 80, 0, 1001+i, pod, node, friend, pod)
	}
	whose := map[netip.Addr]int{netip.MustParseAddr(pod): 1, netip.MustParseAddr(friend): 2}
	_, err := table.Trim(context.Background(), whose, conntrack.Bounds{Closed: 50, All: 50})
	must(t, err)
	var left [2]int
	for _, f := range nettest.List(t, func() ([]*netlink.ConntrackFlow, error) {
		return netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
	}) {
		left[f.Forward.SrcPort/1000]++
	}
	if left != [2]int{10, 40} {
		t.Errorf("left are %v", left)
	}
}

// Trim deletes connections that no NAT has touched before other connections, so that entries which
// somebody has made in a pod's name do not cost the pod its connections with the world.
func TestTrimSparesTranslated(t *testing.T) {
	table := open(t)
	const pod, other, node = "10.88.0.2", "10.88.0.3", "192.0.2.9"
	enterTCP(t, pod, established, 30, "192.0.2.1", node)
	enterTCP(t, pod, established, 100, other)
	enterTCP(t, pod, timeWait, 20, "192.0.2.1", node)
	enterTCP(t, pod, timeWait, 100, other)
	whose := map[netip.Addr]int{netip.MustParseAddr(pod): 1}
	for _, step := range []struct {
		b           conntrack.Bounds
		translated  map[uint8]int
		plainOpen   int
		plainClosed int
	}{
		{conntrack.Bounds{Closed: 150, All: 150}, map[uint8]int{established: 30, timeWait: 20}, 100, 0},
		{conntrack.Bounds{Closed: 50, All: 50}, map[uint8]int{established: 30}, 20, 0},
		{conntrack.Bounds{Closed: 20, All: 20}, map[uint8]int{established: 20}, 0, 0},
	} {
		_, err := table.Trim(context.Background(), whose, step.b)
		must(t, err)
		translated, plain := map[uint8]int{}, map[uint8]int{}
		flows := nettest.List(t, func() ([]*netlink.ConntrackFlow, error) {
			return netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
		})
		for _, f := range flows {
			into := plain
			if !f.Reverse.DstIP.Equal(f.Forward.SrcIP) {
				into = translated
			}
			into[f.ProtoInfo.(*netlink.ProtoInfoTCP).State]++
		}
		if !maps.Equal(translated, step.translated) || plain[established] != step.plainOpen || plain[timeWait] != step.plainClosed {
			t.Errorf("with %+v, left are %v translated, %v others", step.b, translated, plain)
		}
	}
}
