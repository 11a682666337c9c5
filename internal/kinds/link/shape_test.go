package link_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/link"
	"github.com/berth-net/berth/internal/nettest"
)

// shaped makes a pod with a link that has limits.
func (f *fixture) shaped(ingress, egress rtnl.Rate) hold.Hold {
	f.Helper()
	h := f.hold(nettest.Pod(f).Ref(), both)
	spec(h).Ingress, spec(h).Egress = ingress, egress
	f.take(h)
	f.Cleanup(func() { f.release(h) })
	return h
}

// A pod receives and sends at the rates of its limits, in both families, and with packets of many
// segments that are greater than the burst.
func TestRates(t *testing.T) {
	f := newFixture(t)
	f.forwarding()
	for _, c := range []struct{ ingress, egress rtnl.Rate }{
		{rtnl.Rate{Rate: 10_000_000, Burst: 40_000}, rtnl.Rate{Rate: 5_000_000, Burst: 40_000}},
		// The MTU is 1,400. A bucket of one packet loses the time by which a timer is late. A busy
		// machine's timers are late by a good part of the 141 µs that such a packet takes at 10 MB/s.
		{rtnl.Rate{Rate: 2_000_000, Burst: 1414}, rtnl.Rate{Rate: 2_500_000, Burst: 1414}},
	} {
		h := f.shaped(c.ingress, c.egress)
		pod, err := spec(h).Netns.Open()
		must(t, err)
		t.Cleanup(func() { pod.Close() })
		for i, a := range spec(h).Addresses {
			t.Run(fmt.Sprintf("to %s, burst %d", a, c.ingress.Burst), func(t *testing.T) {
				nettest.Pour(t, nil, pod, a)
				nettest.WantRate(t, c.ingress.Rate, uint64(c.ingress.Burst), func() uint64 { return nettest.Received(t, pod, "eth0") })
			})
			t.Run(fmt.Sprintf("from %s, burst %d", a, c.egress.Burst), func(t *testing.T) {
				nettest.Pour(t, pod, nil, []netip.Addr{node4, node6}[i])
				nettest.WantRate(t, c.egress.Rate, uint64(c.egress.Burst), func() uint64 { return nettest.Received(t, nil, spec(h).Name) })
			})
		}
	}
}

// The packets that wait for a pod with a low limit are so few that they fill no socket of the node:
// neither the socket of a UDP server, nor the smaller one from which the kernel answers pings, which
// has 132,224 bytes on each processor. The kernel charges a waiting packet to its sender's socket, and
// an empty one with 832 bytes.
func TestLittleWaits(t *testing.T) {
	f := newFixture(t)
	const most = 132_224 * 4 / 5
	for _, rate := range []uint64{1_000, 12_500, 31_250} { // 8, 100 and 250 kbit/s
		t.Run(fmt.Sprint(rate), func(t *testing.T) {
			h := f.shaped(rtnl.Rate{Rate: rate, Burst: uint32(max(rate/10, 1514))}, rtnl.Rate{})
			server, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
			must(t, err)
			defer unix.Close(server)
			pod := &unix.SockaddrInet4{Port: 9, Addr: spec(h).Addresses[0].As4()}
			waits := 0
			for range 1000 {
				if err := unix.Sendto(server, nil, 0, pod); err != nil {
					t.Fatalf("the server is silent, with %d bytes that wait: %v", waits, err)
				}
				now, err := unix.IoctlGetInt(server, unix.SIOCOUTQ)
				must(t, err)
				waits = max(waits, now)
			}
			if waits < 20_000 || waits > most {
				t.Errorf("%d bytes of the socket's waited", waits)
			}
		})
	}
}

// TCP from another machine uses a low rate to the full, although only few packets may wait.
func TestLowRateOfTCP(t *testing.T) {
	f := newFixture(t)
	f.forwarding()
	from, _ := f.pod(both)
	limit := rtnl.Rate{Rate: 31_250, Burst: 3_125}
	h := f.shaped(limit, rtnl.Rate{})
	to, err := spec(h).Netns.Open()
	must(t, err)
	t.Cleanup(func() { to.Close() })
	nettest.Pour(t, from, to, spec(h).Addresses[0])
	nettest.WantRate(t, limit.Rate, uint64(limit.Burst), func() uint64 { return nettest.Received(t, to, "eth0") })
}

// A link without limits has no queueing discipline, and Verify ignores a limit that others have set.
func TestUnshaped(t *testing.T) {
	f := newFixture(t)
	_, h := f.pod(both)
	if q := f.root(h); q.Shape != (rtnl.Rate{}) || q.Kind != "noqueue" {
		t.Errorf("the link has %+v", q)
	}
	must(t, f.conn.Do(rtnl.Shape(f.show(h).Index, rtnl.Rate{Rate: 1000, Burst: 2000})))
	must(t, f.verify(h))
}

// Verify sees whatever others do to the police of the node's end, of a single link and among many, and
// Acquire mends it.
func TestRepoliced(t *testing.T) {
	nettest.NeedPrograms(t)
	f := newFixture(t)
	egress := rtnl.Rate{Rate: 1_000_000, Burst: 20_000}
	h := f.shaped(rtnl.Rate{}, egress)
	_, other := f.pod(both)
	at := f.show(h).Index
	for _, commands := range [][]string{
		{"filter del dev %s ingress pref 98"},
		{"filter del dev %s ingress"},
		{"qdisc del dev %s clsact"},
		{"qdisc del dev %s clsact", "qdisc add dev %s ingress"},
		{"filter del dev %s ingress pref 98", "filter add dev %s ingress pref 98 protocol ip u32 match u32 0 0 action mirred egress mirror dev lo"},
		{"filter add dev %s ingress pref 98 handle 0xbe98 protocol ipv6 u32 match u32 0 0 action mirred egress mirror dev lo"},
	} {
		t.Run(strings.Join(commands, "; "), func(t *testing.T) {
			if strings.Contains(commands[0], "ipv6") { // another place for the filter, although the number is the same
				nettest.Run(t, nil, "tc filter del dev "+spec(h).Name+" ingress pref 98")
			}
			for _, command := range commands {
				nettest.Run(t, nil, "tc "+fmt.Sprintf(command, spec(h).Name))
			}
			for _, err := range []error{f.verify(h), f.kind.Verify(t.Context(), nil, []hold.Hold{h, other})[0]} {
				if !errors.Is(err, hold.ErrChanged) || !strings.Contains(err.Error(), "lets in all that the pod sends, not rate 1000000bps burst 20000") {
					t.Errorf("seen: %v", err)
				}
			}
			f.wantRepaired(h, at)
			for _, err := range f.kind.Verify(t.Context(), nil, []hold.Hold{h, other}) {
				must(t, err)
			}
		})
	}
}

// Where the kernel takes no programs, Acquire makes a link without police, and tells the agent once.
func TestUnpoliced(t *testing.T) {
	var told []error
	f := newFixture(t, func(o *link.Options) { o.Unpoliced = func(err error) { told = append(told, err) } })
	f.links.Unpolice(kernel.Classify(unix.EPERM))
	for range 2 {
		h := f.shaped(rtnl.Rate{}, rtnl.Rate{Rate: 1_000_000, Burst: 20_000})
		must(t, f.verify(h))
		must(t, f.links.VerifyPod(t.Context(), h))
		if policed, err := f.conn.Policed(f.show(h).Index); err != nil || len(policed) > 0 {
			t.Errorf("the links are policed: %v, %v", policed, err)
		}
	}
	if len(told) != 1 || !errors.Is(told[0], kernel.ErrPermission) {
		t.Errorf("told: %v", told)
	}
}

// root reads the queueing discipline of a link's end on the node.
func (f *fixture) root(h hold.Hold) (q rtnl.Qdisc) {
	f.Helper()
	must(f, f.conn.GetQdisc(f.show(h).Index, &q))
	return q
}

// Verify sees whatever others put in the place of a limit on the node's end, of a single link and among
// many, and Acquire mends it. CHECK sees changes that a pod makes to its own end.
func TestReshaped(t *testing.T) {
	f := newFixture(t)
	ingress := rtnl.Rate{Rate: 1_000_000, Burst: 20_000}
	h := f.shaped(ingress, rtnl.Rate{Rate: 2_000_000, Burst: 1 << 28})
	_, other := f.pod(both)
	at := f.show(h).Index
	for _, command := range []string{
		"del dev %s root",
		"replace dev %s root tbf rate 1000000bps burst 20000 limit 100000",
		"change dev %s root handle be98: tbf rate 2000000bps burst 20000 limit 45000",
		"change dev %s root handle be98: tbf rate 1000000bps burst 40000 limit 45000",
		"change dev %s root handle be98: stab overhead -5000",
		"replace dev %s root handle be98: pfifo limit 7",
		"replace dev %s root handle 1: htb",
	} {
		t.Run(command, func(t *testing.T) {
			if strings.HasSuffix(command, "pfifo limit 7") {
				nettest.Run(t, nil, "tc qdisc del dev "+spec(h).Name+" root")
			}
			nettest.Run(t, nil, "tc qdisc "+fmt.Sprintf(command, spec(h).Name))
			for _, err := range []error{f.verify(h), f.kind.Verify(t.Context(), nil, []hold.Hold{h, other})[0]} {
				if !errors.Is(err, hold.ErrChanged) || !strings.Contains(err.Error(), "rate 1000000bps burst 20000") {
					t.Errorf("seen: %v", err)
				}
			}
			f.wantRepaired(h, at)
			if q := f.root(h); q.Shape != ingress {
				t.Errorf("repaired: %s", q)
			}
			for _, err := range f.kind.Verify(t.Context(), nil, []hold.Hold{h, other}) {
				must(t, err)
			}
		})
	}
	must(t, f.links.VerifyPod(t.Context(), h))
	pod, err := spec(h).Netns.Open()
	must(t, err)
	defer pod.Close()
	nettest.Run(t, pod, "tc qdisc change dev eth0 root stab overhead -5000")
	f.wants(h, hold.ErrChanged, "sends with another tbf, not rate 2000000bps")
	nettest.Run(t, pod, "tc qdisc del dev eth0 root")
	f.wants(h, hold.ErrChanged, "rate 2000000bps")
}

// A rebuild finds a link's limits without the link's spec.
func TestRatesOfEnds(t *testing.T) {
	f := newFixture(t)
	ingress, egress := rtnl.Rate{Rate: 1_000_000, Burst: 1 << 26}, rtnl.Rate{Rate: 20_000, Burst: 1 << 29}
	h := f.shaped(ingress, egress)
	all, err := f.conn.Shaped()
	must(t, err)
	l := f.show(h)
	if !slices.ContainsFunc(all, func(q rtnl.Qdisc) bool { return q.Index == l.Index && q.Shape == ingress }) {
		t.Errorf("the node has %v", all)
	}
	ends := link.FindEnds(f.conn.Ref(), []link.WantedEnd{{Link: l, PodMAC: spec(h).MAC}})
	if got := ends[l.Name].Egress; got != egress {
		t.Errorf("the pod's end has %s, not %s", got, egress)
	}
	policed, err := f.conn.Policed(l.Index)
	must(t, err)
	if got := policed[l.Index]; got != egress && nettest.Programs(t) {
		t.Errorf("the node's end lets in %s, not %s", got, egress)
	}
}
