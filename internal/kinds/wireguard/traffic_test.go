package wireguard_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	door "github.com/berth-net/berth/internal/kernel/wireguard"
	"github.com/berth-net/berth/internal/kinds/noderoute"
	"github.com/berth-net/berth/internal/kinds/wireguard"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/stamp"
)

// station is a node on the segment, with one pod: an address of the node's pods on lo stands for it.
type station struct {
	*side
	n      int
	ways   hold.Kind
	metric uint32
	holds  map[int][]hold.Hold // to other stations, by their number
}

func (s *station) address(ipv6 bool) netip.Addr {
	if ipv6 {
		return netip.MustParseAddr(fmt.Sprintf("2001:db8::%d", s.n))
	}
	return netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", s.n))
}

func (s *station) cidrs() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", s.n)), netip.MustParsePrefix(fmt.Sprintf("fd00:244:%d::/64", s.n))}
}

func (s *station) pods() []netip.Addr {
	return []netip.Addr{netip.MustParseAddr(fmt.Sprintf("10.244.%d.7", s.n)), netip.MustParseAddr(fmt.Sprintf("fd00:244:%d::7", s.n))}
}

// stations makes nodes on a segment, whose bridge is in the namespace that is returned.
func stations(t *testing.T, number int) (segment *ns.Netns, all []*station) {
	segment = nettest.Node(t)
	nettest.Run(t, segment, "ip link add br0 type bridge")
	nettest.Run(t, segment, "ip link set br0 addrgenmode none up")
	for n := 1; n <= number; n++ {
		at := nettest.Node(t)
		nettest.Run(t, segment, fmt.Sprintf("ip link add port%d type veth peer name eth0 netns %s", n, filepath.Base(at.Ref().Path)))
		nettest.Run(t, segment, fmt.Sprintf("ip link set port%d master br0 addrgenmode none up", n))
		nettest.Run(t, at, "ip link set eth0 addrgenmode none up")
		s := &station{side: newSide(t, at, false), n: n, holds: map[int][]hold.Hold{}}
		for _, ipv6 := range []bool{false, true} {
			bits := map[bool]string{false: "/24", true: "/64"}[ipv6]
			nettest.Run(t, at, "ip addr add "+s.address(ipv6).String()+bits+" dev eth0 nodad")
		}
		for _, a := range s.pods() {
			nettest.Run(t, at, fmt.Sprintf("ip addr add %s/%d dev lo nodad", a, a.BitLen()))
		}
		// Where packets for pods go that have no way: to the segment, in clear.
		nettest.Run(t, at, "ip route add 10.244.0.0/16 dev eth0")
		nettest.Run(t, at, "ip route add fd00:244::/32 dev eth0")
		c, err := rtnl.Open(at)
		must(t, err)
		t.Cleanup(func() { c.Close() })
		s.metric, err = stamp.MetricOf(s.instance)
		must(t, err)
		s.ways = noderoute.New(noderoute.Options{Conn: c, Metric: s.metric, Tunnel: s.name()}).Kind()
		d := s.spec()
		d.Addresses = nil
		for _, cidr := range s.cidrs() {
			d.Addresses = append(d.Addresses, cidr.Addr())
		}
		s.take(t, d)
		all = append(all, s)
	}
	return segment, all
}

// kind returns the kind of a hold.
func (s *station) kind(h hold.Hold) hold.Kind {
	if h.Spec.Kind() == wireguard.PeerKind {
		return s.PeerKind()
	}
	return s.ways
}

// reach takes what leads to another station, as package peers does.
func (s *station) reach(t testing.TB, o *station) {
	t.Helper()
	owner := hold.NewID()
	var specs []hold.Spec
	for _, c := range o.cidrs() {
		specs = append(specs, &noderoute.Spec{CIDR: c, Metric: stamp.Beneath(s.metric), Closed: true})
	}
	specs = append(specs, &wireguard.Peer{Instance: s.instance, PublicKey: o.secret.Public(), Endpoint: netip.AddrPortFrom(o.address(false), 51820), AllowedIPs: o.cidrs()})
	for _, c := range o.cidrs() {
		specs = append(specs, &noderoute.Spec{CIDR: c, Via: wireguard.Gateway(c), Metric: s.metric, Tunnel: true})
	}
	for _, spec := range specs {
		h := hold.Hold{Owner: owner, Spec: spec}
		must(t, s.kind(h).Acquire(t.Context(), h))
		s.holds[o.n] = append(s.holds[o.n], h)
	}
}

// mend takes again what is not as it should be, as a sweep does.
func (s *station) mend(t testing.TB) {
	t.Helper()
	must(t, s.DeviceKind().Acquire(t.Context(), s.device))
	for _, hs := range s.holds {
		for _, h := range hs {
			if s.kind(h).Verify(t.Context(), nil, []hold.Hold{h})[0] != nil {
				must(t, s.kind(h).Acquire(t.Context(), h))
			}
		}
	}
}

// leave gives back what leads to another station.
func (s *station) leave(t testing.TB, o *station) {
	t.Helper()
	for _, h := range slices.Backward(s.holds[o.n]) {
		must(t, s.kind(h).Release(t.Context(), []hold.Hold{h})[0])
	}
	delete(s.holds, o.n)
}

// talks waits until pods of the stations reach each other, in both families.
func talks(t testing.TB, from, to *station) {
	t.Helper()
	for _, pod := range to.pods() {
		nettest.Eventually(t, fmt.Sprintf("station %d to reach the pod %s", from.n, pod), func() bool {
			return nettest.Echo(from.at, pod, 500*time.Millisecond) == nil
		})
	}
}

// silent wants that pods of a station are out of reach.
func silent(t testing.TB, from, to *station) {
	t.Helper()
	for _, pod := range to.pods() {
		if nettest.Echo(from.at, pod, 300*time.Millisecond) == nil {
			t.Errorf("station %d reaches the pod %s", from.n, pod)
		}
	}
}

// capture listens to all that passes the segment until stop is called. stop returns what passed in clear, to or from pods, and how many
// packets to the WireGuard port passed.
func capture(t testing.TB, segment *ns.Netns) (stop func() (clear []string, sealed int)) {
	t.Helper()
	var fd int
	must(t, segment.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(htons(unix.ETH_P_ALL)))
		if err != nil {
			return err
		}
		return unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000})
	}))
	var clear []string
	sealed, done := 0, make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		buf := make([]byte, 4096)
		for {
			n, _, err := unix.Recvfrom(fd, buf, 0)
			if err != nil {
				select {
				case <-done:
					return
				default:
					continue
				}
			}
			if what, isClear, isSealed := look(buf[:n]); isClear {
				clear = append(clear, what)
			} else if isSealed {
				sealed++
			}
		}
	})
	stopped := false
	stop = func() ([]string, int) {
		if !stopped {
			stopped = true
			close(done)
			wg.Wait()
			unix.Close(fd)
		}
		return clear, sealed
	}
	t.Cleanup(func() { stop() })
	return stop
}

func htons(n uint16) uint16 { return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, n)) }

// look says whether a frame has a pod's address in its IP header or in an ARP or neighbour request, and whether it is WireGuard's.
func look(frame []byte) (what string, clear, sealed bool) {
	const head = 14
	pods4, pods6 := netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:244::/32")
	of := func(b []byte) netip.Addr { a, _ := netip.AddrFromSlice(b); return a }
	switch typ := binary.BigEndian.Uint16(frame[12:]); {
	case typ == unix.ETH_P_IP && len(frame) >= head+28:
		src, dst := of(frame[head+12:head+16]), of(frame[head+16:head+20])
		udp := frame[head+9] == unix.IPPROTO_UDP && binary.BigEndian.Uint16(frame[head+22:]) == 51820
		return fmt.Sprintf("IPv4 %s > %s", src, dst), pods4.Contains(src) || pods4.Contains(dst), udp
	case typ == unix.ETH_P_IPV6 && len(frame) >= head+40:
		src, dst := of(frame[head+8:head+24]), of(frame[head+24:head+40])
		return fmt.Sprintf("IPv6 %s > %s", src, dst), pods6.Contains(src) || pods6.Contains(dst), false
	case typ == unix.ETH_P_ARP && len(frame) >= head+28:
		dst := of(frame[head+24 : head+28])
		return fmt.Sprintf("ARP for %s", dst), pods4.Contains(dst), false
	}
	return "", false, false
}

// Pods of three nodes reach each other, and whatever happens meanwhile, the segment between the nodes sees nothing of theirs in clear: a
// node's device is deleted, a node goes, and a node comes back with another key.
func TestTraffic(t *testing.T) {
	segment, all := stations(t, 3)
	a, b, c := all[0], all[1], all[2]
	heard := capture(t, segment)
	for _, from := range all {
		for _, to := range all {
			if from != to {
				from.reach(t, to)
			}
		}
	}
	talks(t, a, b)
	talks(t, b, c)
	talks(t, c, a)

	nettest.Run(t, a.at, "ip link del "+a.name()) // by somebody
	silent(t, a, b)
	a.mend(t)
	talks(t, a, b)

	must(t, door.Open(a.at).RemovePeer(a.name(), b.secret.Public()))
	silent(t, a, b)
	a.mend(t)
	talks(t, a, b)

	// The node b is installed anew: it has another key, and the other nodes hear of it later.
	var err error
	was := b.secret
	b.secret, err = door.LoadSecret(filepath.Join(t.TempDir(), "key"))
	must(t, err)
	d := *b.device.Spec.(*wireguard.Device)
	d.PublicKey = b.secret.Public()
	next := hold.Hold{Owner: b.device.Owner, Spec: &d}
	must(t, b.DeviceKind().Acquire(t.Context(), next))
	must(t, b.DeviceKind().Release(t.Context(), []hold.Hold{b.device})[0])
	b.device = next
	silent(t, a, b)
	for _, s := range []*station{a, c} {
		former := s.holds[b.n]
		s.holds[b.n] = nil
		s.reach(t, b)
		for _, h := range former { // the engine gives back what the new holds have not
			if !slices.ContainsFunc(s.holds[b.n], func(o hold.Hold) bool { return o.Spec.String() == h.Spec.String() }) {
				must(t, s.kind(h).Release(t.Context(), []hold.Hold{h})[0])
			}
		}
		talks(t, s, b)
		if slices.ContainsFunc(s.has(t).Peers, func(p door.Peer) bool { return p.PublicKey == was.Public() }) {
			t.Errorf("station %d still has the former key of station %d", s.n, b.n)
		}
	}

	clear, sealed := heard()
	if len(clear) > 0 || sealed < 20 {
		t.Errorf("%d packets of WireGuard passed, and in clear:\n%s", sealed, strings.Join(clear, "\n"))
	}

	// The node c goes: nothing is left of it on a.
	a.leave(t, c)
	talks(t, a, b)
	if p := a.has(t).Peers; len(p) != 1 {
		t.Errorf("the peers of a are %v", p)
	}
	if routes := nettest.Snapshot(t, a.at).Only("route").String(); strings.Contains(routes, "10.244.3.") || strings.Contains(routes, "fd00:244:3:") {
		t.Errorf("routes to c are left:\n%s", routes)
	}
	// The capture would have shown it: without a way, the packets go in clear.
	heard = capture(t, segment)
	for _, pod := range c.pods() {
		_ = nettest.Echo(a.at, pod, 300*time.Millisecond) // which c may answer
	}
	if clear, _ := heard(); len(clear) == 0 {
		t.Error("the capture does not see what passes in clear")
	}
}
