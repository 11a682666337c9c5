package conntrack_test

import (
	"net"
	"net/netip"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel/conntrack"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

var must = nettest.Must

// open opens the table of the test's node, and empties the table when the test ends.
func open(t testing.TB) *conntrack.Table {
	t.Helper()
	nettest.Need(t)
	here, err := ns.Self()
	must(t, err)
	t.Cleanup(func() { here.Close() })
	table, err := conntrack.Open(here)
	must(t, err)
	t.Cleanup(table.Close)
	flush := func() {
		if err := netlink.ConntrackTableFlush(netlink.ConntrackTable); err != nil {
			t.Errorf("flushing conntrack: %v", err)
		}
	}
	flush()
	t.Cleanup(flush)
	return table
}

// enter makes an entry of a question to a name server: the original direction is from src
// to dst, the reply's is from from to to.
func enter(t testing.TB, zone uint16, port int, src, dst, from, to string) {
	t.Helper()
	enterAt(t, 53, zone, port, src, dst, from, to)
}

// enterAt is enter for the port of another service.
func enterAt(t testing.TB, service, zone uint16, port int, src, dst, from, to string) {
	t.Helper()
	var family netlink.InetFamily = unix.AF_INET6
	if netip.MustParseAddr(src).Is4() {
		family = unix.AF_INET
	}
	must(t, netlink.ConntrackCreate(netlink.ConntrackTable, family, &netlink.ConntrackFlow{
		FamilyType: uint8(family), Zone: zone, TimeOut: 3600,
		Forward: netlink.IPTuple{SrcIP: raw(src), DstIP: raw(dst), SrcPort: uint16(port), DstPort: service, Protocol: unix.IPPROTO_UDP},
		Reverse: netlink.IPTuple{SrcIP: raw(from), DstIP: raw(to), SrcPort: service, DstPort: uint16(port), Protocol: unix.IPPROTO_UDP},
	}))
}

func raw(addr string) net.IP { return netip.MustParseAddr(addr).AsSlice() }

func entries(t testing.TB) string {
	t.Helper()
	return nettest.Snapshot(t, nil).Only("conntrack").String()
}

// Forget deletes an entry that names the address in any place, and no other entry
// (containernetworking/plugins #123, #1190; amazon-vpc-cni-k8s #3634).
func TestForget(t *testing.T) {
	table := open(t)
	const dead, dead6 = "10.88.0.7", "fd00:88::7"
	enter(t, 0, 1, dead, "192.0.2.1", "192.0.2.1", dead)
	enter(t, 0, 2, "192.0.2.1", dead, dead, "192.0.2.1")
	enter(t, 0, 3, dead, "192.0.2.1", "192.0.2.1", "198.51.100.1")         // masqueraded
	enter(t, 0, 4, "192.0.2.1", "198.51.100.1", dead, "192.0.2.1")         // DNAT
	enter(t, 0, 5, "192.0.2.1", "198.51.100.1", "10.88.0.9", dead)         // only the reply names the address
	enter(t, 9, 6, dead, "192.0.2.1", "192.0.2.1", dead)                   // in a zone
	enter(t, 0, 7, dead6, "2001:db8::1", "2001:db8::1", dead6)             // IPv6
	enter(t, 0, 8, "2001:db8::1", "2001:db8::2", dead6, "2001:db8::1")     // IPv6 with DNAT
	enter(t, 0, 100, "10.88.0.70", "192.0.2.1", "192.0.2.1", "10.88.0.70") // others
	enter(t, 9, 101, "10.88.0.8", "192.0.2.1", "192.0.2.1", "10.88.0.8")
	enter(t, 0, 102, "fd00:88::8", "2001:db8::1", "2001:db8::1", "fd00:88::8")
	if n := strings.Count(entries(t), "conntrack"); n != 11 {
		t.Fatalf("%d entries, want 11:\n%s", n, entries(t))
	}
	must(t, table.Forget([]netip.Addr{netip.MustParseAddr(dead6)}))
	if left := entries(t); strings.Count(left, "conntrack") != 9 || strings.Contains(left, dead6+" ") {
		t.Errorf("after forgetting %s:\n%s", dead6, left)
	}
	must(t, table.Forget([]netip.Addr{netip.MustParseAddr(dead), netip.MustParseAddr(dead6), netip.MustParseAddr("10.0.0.1")}))
	left := entries(t)
	if strings.Count(left, "conntrack") != 3 || strings.Contains(left, dead+" ") {
		t.Errorf("after forgetting all:\n%s", left)
	}
	must(t, table.Forget(nil))
	table.Close()
	if err := table.Forget([]netip.Addr{netip.MustParseAddr(dead)}); err == nil {
		t.Error("a closed table forgets")
	}
}

// Forget lists and deletes more entries than fit into one message, in bounded memory. Forget leaves out
// no entry, although it deletes entries while the kernel lists the table.
func TestForgetMany(t *testing.T) {
	table := open(t)
	const gone, kept = 3000, 1500
	fill(t, "10.88.0.7", gone)
	fill(t, "10.88.0.8", kept)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	must(t, table.Forget([]netip.Addr{netip.MustParseAddr("10.88.0.7")}))
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 256<<10 {
		t.Errorf("a pass over %d entries allocates %d bytes", gone+kept, n)
	}
	flows := nettest.List(t, func() ([]*netlink.ConntrackFlow, error) {
		return netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
	})
	if len(flows) != kept {
		t.Errorf("%d entries are left, want %d", len(flows), kept)
	}
}

// fill makes entries of one address.
func fill(t testing.TB, addr string, n int) {
	t.Helper()
	for i := range n {
		dst := netip.AddrFrom4([4]byte{198, 18, byte(i >> 14), byte(i >> 6)}).String()
		enter(t, 0, 1024+i%64, addr, dst, dst, addr)
	}
}

// BenchmarkForget measures a pass over 200,000 entries of other addresses.
func BenchmarkForget(b *testing.B) {
	table := open(b)
	for i := range 8 {
		fill(b, netip.AddrFrom4([4]byte{10, 88, 1, byte(i)}).String(), 25_000)
	}
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		fill(b, "10.88.0.7", 50)
		b.StartTimer()
		must(b, table.Forget([]netip.Addr{netip.MustParseAddr("10.88.0.7"), netip.MustParseAddr("fd00:88::7")}))
	}
}
