package health

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/peers"
)

func TestMain(m *testing.M) { nettest.Main(m) }

var must = nettest.Must

var clock = time.Unix(1_800_000_000, 0)

func newHealth(o Options) *Health {
	o.Enabled, o.Node = true, "me"
	if o.Interval == 0 {
		o.Interval = 30 * time.Second
	}
	return New(&daemon.Core{Options: daemon.Options{Log: slog.New(slog.DiscardHandler)}, Place: daemon.Place{Wall: func() time.Time { return clock }}}, o)
}

func parse(text string) (addrs []netip.Addr) {
	for _, f := range strings.Fields(text) {
		addrs = append(addrs, netip.MustParseAddr(f))
	}
	return addrs
}

// The responder gets the addresses that the cluster was told, as far as these can be had: it waits for those that rest not too
// long, and for all of them while the ledger's loss keeps the pool closed. Otherwise it gets others.
func TestClaim(t *testing.T) {
	cidrs := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("fd00::/64")}
	taken, soon, late := netip.MustParseAddr("10.0.0.8"), netip.MustParseAddr("10.0.0.9"), netip.MustParseAddr("10.0.0.10")
	pool := func(lost bool) func(context.Context, string, []netip.Addr) (ipam.Claim, error) {
		return func(_ context.Context, pool string, wanted []netip.Addr) (ipam.Claim, error) {
			if lost {
				return ipam.Claim{}, &ipam.ExhaustedError{Pool: pool, Lost: true}
			}
			c := of(parse("10.0.0.1 fd00::1"))
			for _, a := range wanted {
				bad := map[netip.Addr]*ipam.AddrError{
					taken: {Err: ipam.ErrTaken}, soon: {Err: ipam.ErrResting, Until: clock.Add(time.Minute)}, late: {Err: ipam.ErrResting, Until: clock.Add(time.Hour)},
				}[a]
				if bad != nil {
					bad.Addr = a
					return ipam.Claim{}, fmt.Errorf("wrapped: %w", bad)
				}
				if a.Is4() {
					c.V4 = a
				} else {
					c.V6 = a
				}
			}
			return c, nil
		}
	}
	for _, c := range []struct {
		wanted, free string // free: those that Adopt claims
		lost         bool
		want         string // "": it waits
	}{
		{"", "", false, "10.0.0.1 fd00::1"},
		{"10.0.0.7 fd00::7", "", false, "10.0.0.7 fd00::7"},
		{"fd00::7", "", false, "10.0.0.1 fd00::7"},
		{"192.0.2.1 fd00::7", "", false, "10.0.0.1 fd00::7"},
		{taken.String() + " fd00::7", "", false, "10.0.0.1 fd00::7"},
		{soon.String() + " fd00::7", "", false, ""},
		{late.String() + " fd00::7", "", false, "10.0.0.1 fd00::7"},
		{"", "", true, ""},
		{"10.0.0.7 fd00::7", "10.0.0.7 fd00::7", true, "10.0.0.7 fd00::7"},
		{"10.0.0.7 fd00::7", "10.0.0.7", true, ""},
		{"10.0.0.7 fd00::7", "", true, ""},
	} {
		var back []netip.Addr
		h := newHealth(Options{
			CIDRs: func(string) []netip.Prefix { return cidrs }, Claim: pool(c.lost), Adopt: func([]netip.Addr) []netip.Addr { return parse(c.free) },
			Unclaim: func(c ipam.Claim) { back = append(back, c.Addrs()...) },
		})
		got, err := h.claim(t.Context(), "default", parse(c.wanted))
		if (err != nil) != (c.want == "") || err == nil && !slices.Equal(got.Addrs(), parse(c.want)) {
			t.Errorf("wanted %q, lost %t: %v, %v; want %q", c.wanted, c.lost, got.Addrs(), err, c.want)
		}
		if c.lost && c.want == "" && !slices.Equal(back, parse(c.free)) {
			t.Errorf("wanted %q: %v is given back, want %q", c.wanted, back, c.free)
		}
	}
}

// Addresses fit CIDRs if there is one of each family, within the CIDRs.
func TestFits(t *testing.T) {
	v4, v6 := netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("fd00::/64")
	for _, c := range []struct {
		addrs string
		cidrs []netip.Prefix
		want  bool
	}{
		{"10.0.0.1", []netip.Prefix{v4}, true},
		{"fd00::1", []netip.Prefix{v6}, true},
		{"10.0.0.1 fd00::1", []netip.Prefix{v4, v6}, true},
		{"10.0.0.1", []netip.Prefix{v4, v6}, false},
		{"10.0.0.1 fd00::1", []netip.Prefix{v4}, false},
		{"10.0.1.1", []netip.Prefix{v4}, false},
		{"", []netip.Prefix{v4}, false},
	} {
		if got := fits(of(parse(c.addrs)), c.cidrs); got != c.want {
			t.Errorf("%q in %v: %t", c.addrs, c.cidrs, got)
		}
	}
}

// others returns nodes, each with two ways by each path.
func others(n int) (nodes []peers.Node) {
	for i := range n {
		low := fmt.Sprintf("%d.%d", i/250, i%250+1)
		six := fmt.Sprintf("%x", i+1)
		nodes = append(nodes, peers.Node{Name: fmt.Sprint("n", i), Addresses: parse("192.168." + low + " 2001:db8::" + six), Health: parse("10.0." + low + " fd00::" + six)})
	}
	return nodes
}

// A round has each way once. The ways of a small cluster are spread over the interval; a large cluster's round takes longer, so
// that no node begins more than some 50 probes a second.
func TestRound(t *testing.T) {
	for _, c := range []struct {
		nodes      int
		gap, lasts time.Duration
	}{
		{0, 30 * time.Second, 30 * time.Second},
		{2, 3750 * time.Millisecond, 30 * time.Second},
		{10_000, 20 * time.Millisecond, 800 * time.Second},
	} {
		h := newHealth(Options{})
		h.All(others(c.nodes))
		round, gap := h.round()
		seen := map[way]bool{}
		for _, w := range round {
			seen[w] = true
		}
		if len(seen) != 4*c.nodes || len(round) != 4*c.nodes || gap != c.gap || h.View().Interval != c.lasts {
			t.Errorf("%d nodes: a round of %d ways, of which %d differ, each after %s, all in %s", c.nodes, len(round), len(seen), gap, h.View().Interval)
		}
	}
}

// What is known of a way goes when the node goes, or has another address, and stays otherwise.
func TestForget(t *testing.T) {
	h := newHealth(Options{})
	nodes := others(3)
	h.All(nodes)
	for _, w := range h.ways() {
		h.results[w] = &result{}
	}
	nodes[0].Health = nodes[0].Health[:1]
	h.Put(nodes[0])
	h.Drop("n1")
	if len(h.results) != 7 {
		t.Errorf("%d results are left, want 7", len(h.results))
	}
	h.All(nodes[2:])
	if len(h.results) != 4 || h.results[way{"n2", api.PathPod, nodes[2].Health[0]}] == nil {
		t.Errorf("left: %v", h.results)
	}
}

// The cluster is told addresses once, and again if it has others. It is told nothing as long as the agent does not know which
// addresses it has, and of none if the node has no responder.
func TestTell(t *testing.T) {
	var told []string
	h := newHealth(Options{Annotate: func(_ context.Context, v4, v6 *netip.Addr) error {
		told = append(told, fmt.Sprint(v4, v6))
		return nil
	}})
	step := func(what string, want ...string) {
		t.Helper()
		told = nil
		must(t, h.tell(t.Context()), h.tell(t.Context()))
		if !slices.Equal(told, want) {
			t.Errorf("%s: told %q, want %q", what, told, want)
		}
	}
	step("nobody has told of this node")
	h.Self(peers.Node{Name: "me", Health: parse("10.0.0.7 fd00::7")})
	step("no responder yet")
	h.place = &place{addresses: of(parse("10.0.0.7 fd00::7"))}
	step("the cluster has them")
	h.place = &place{addresses: of(parse("10.0.0.8"))}
	step("others", "10.0.0.8 <nil>")
	h.Self(peers.Node{Name: "me", Health: parse("10.0.0.7")})
	step("somebody has written others", "10.0.0.8 <nil>")
	h.Enabled = false
	step("no responder any more", "<nil> <nil>")
	h.Self(peers.Node{Name: "me"})
	step("the cluster has none")
}

// A place answers in its node's name, and reaches others by TCP and ICMP. It says why it does not: another node answers, nobody
// listens, nobody is there. Closed, it leaves nothing.
func TestPlace(t *testing.T) {
	nettest.Need(t)
	ended := nettest.Goroutines(t)
	before := nettest.Snapshot(t, nil).Without("sysctl", "conntrack")
	const port = 9478
	a, err := open("a", port, ipam.Claim{})
	must(t, err)
	b, err := open("b", port, ipam.Claim{})
	must(t, err)
	nettest.Run(t, nil, "ip link add eth0 netns "+a.ref().Path+" type veth peer name eth0 netns "+b.ref().Path)
	for i, p := range []*place{a, b} {
		at, err := ns.Open(p.ref().Path)
		must(t, err)
		for _, c := range []string{
			fmt.Sprintf("ip addr add 192.0.2.%d/24 dev eth0", i+1), fmt.Sprintf("ip addr add 2001:db8::%d/64 dev eth0 nodad", i+1), "ip link set eth0 up",
		} {
			nettest.Run(t, at, c)
		}
		must(t, at.Close())
	}
	h := newHealth(Options{Health: config.Health{Port: port}})
	for _, addr := range parse("192.0.2.2 2001:db8::2") {
		nettest.Eventually(t, "b to answer at "+addr.String(), func() bool { return h.hello(t.Context(), a, addr, "b") == nil })
		must(t, a.ping(t.Context(), addr))
		if err := h.hello(t.Context(), a, addr, "c"); err == nil || !strings.Contains(err.Error(), `"b"`) {
			t.Errorf("b answers in place of c: %v", err)
		}
		h.Port = 1
		if err := h.hello(t.Context(), a, addr, "b"); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("nobody listens: %v", err)
		}
		h.Port = port
	}
	for _, addr := range parse("192.0.2.9 2001:db8::9") {
		if err := a.ping(t.Context(), addr); !errors.Is(err, errSilent) && !errors.Is(err, unix.EHOSTUNREACH) {
			t.Errorf("an echo to nobody: %v", err)
		}
		if err := h.hello(t.Context(), a, addr, "b"); !errors.Is(err, errSilent) && !errors.Is(err, unix.EHOSTUNREACH) {
			t.Errorf("a request to nobody: %v", err)
		}
	}
	if err := a.ping(t.Context(), netip.MustParseAddr("198.51.100.1")); !errors.Is(err, unix.ENETUNREACH) {
		t.Errorf("an echo without a route: %v", err)
	}
	must(t, a.close(), b.close(), b.close())
	if _, err := a.socket(unix.AF_INET, unix.SOCK_STREAM, 0); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a closed place makes sockets: %v", err)
	}
	ended()
	nettest.Same(t, before, nettest.Snapshot(t, nil).Without("sysctl", "conntrack"), "residue")
}

// A listener with places for two lets the third client in when one of the two has left.
func TestBounded(t *testing.T) {
	nettest.Need(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	b := &bounded{Listener: l, places: make(chan struct{}, 2)}
	came := make(chan net.Conn)
	go func() {
		defer close(came)
		for {
			conn, err := b.Accept()
			if err != nil {
				return
			}
			came <- conn
		}
	}()
	for range 3 {
		conn, err := net.Dial("tcp", l.Addr().String())
		must(t, err)
		defer conn.Close()
	}
	first, second := <-came, <-came
	select {
	case <-came:
		t.Error("a third client is let in")
	case <-time.After(50 * time.Millisecond):
	}
	must(t, first.Close())
	_ = first.Close() // gives no place back
	third := <-came
	select {
	case <-came:
		t.Error("a fourth client is let in")
	default:
	}
	must(t, second.Close(), third.Close(), l.Close())
	<-came
}
