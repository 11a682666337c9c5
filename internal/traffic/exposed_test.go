package traffic

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/ground"
	"github.com/berth-net/berth/internal/kernel/conntrack"
	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/kinds"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/node"
	"github.com/berth-net/berth/internal/ports"
	"github.com/berth-net/berth/internal/root"
)

// A mapping for all addresses of a family has its port at each address of this family. A mapping for a
// single address has its port at this address alone.
func TestHostPorts(t *testing.T) {
	ports := hostPorts{}
	ports.add([]nft.Mapping{
		{Protocol: "udp", Host: netip.MustParseAddrPort("0.0.0.0:53"), Pod: netip.MustParseAddrPort("10.88.0.7:5353")},
		{Protocol: "sctp", Host: netip.MustParseAddrPort("[2001:db8::1]:80"), Pod: netip.MustParseAddrPort("[fd00:88::7]:80")},
	})
	for _, tt := range []struct {
		protocol, at string
		want         bool
	}{
		{"udp", "192.0.2.9:53", true}, {"udp", "127.0.0.1:53", true}, {"udp", "[2001:db8::1]:53", false},
		{"udp", "192.0.2.9:5353", false}, {"sctp", "192.0.2.9:53", false},
		{"sctp", "[2001:db8::1]:80", true}, {"sctp", "[2001:db8::2]:80", false}, {"udp", "[2001:db8::1]:80", false},
	} {
		if _, got := ports.pod(tt.protocol, netip.MustParseAddrPort(tt.at)); got != tt.want {
			t.Errorf("%s %s: %v, want %v", tt.protocol, tt.at, got, tt.want)
		}
	}
}

// failing is connection tracking whose first passes fail.
type failing struct {
	kinds.Tracked
	fails  int             // how many of the passes to come fail
	begun  time.Time       // from when the times in passes count
	passes []time.Duration // when each began
	ports  []uint16        // the ports that the last pass looked for
	missed []bool          // what each pass for exposed connections was told
	during func()          // a pass calls it, if it is not nil
}

func (f *failing) ForgetMapped(to conntrack.Mapped, led conntrack.Led) error {
	f.ports = nil
	for port := range uint16(1024) {
		if _, ok := to("udp", netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), port)); ok {
			f.ports = append(f.ports, port)
		}
	}
	return f.ForgetExposed(conntrack.Rules{})
}

func (f *failing) ForgetExposed(r conntrack.Rules) error {
	f.missed = append(f.missed, r.Missed)
	if f.during != nil {
		f.during()
	}
	f.passes = append(f.passes, time.Since(f.begun))
	if f.fails--; f.fails >= 0 {
		return errors.New("the table changed while it was read, 5 times")
	}
	return nil
}

// keep runs `loop`, one of the loops of a Traffic, in a bubble of synctest. The first passes fail: as
// many as `fails` says.
func keep(t *testing.T, fails int, loop func(*Traffic, context.Context), test func(*Traffic, *failing)) {
	synctest.Test(t, func(t *testing.T) {
		f := &failing{fails: fails, begun: time.Now()}
		d := &daemon.Core{Ledger: &ledger.Ledger{}}
		d.Root, d.Log = emptyRoot(t), slog.New(slog.DiscardHandler)
		n := &node.Node{Tracked: f}
		g, err := ground.New(d, n, &config.Config{})
		nettest.Must(t, err)
		tr := New(d, n, g, nil)
		tr.Ports = ports.New(d, nil, g, alone{})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel() // synctest.Test fails if the loop does not end then
		go loop(tr, ctx)
		test(tr, f)
	})
}

// alone is a node with no other agent.
type alone struct{ ports.Node }

func (alone) OtherPorts() (map[string][]nft.Port, error) { return nil, nil }

// emptyRoot is a root with an empty run folder.
func emptyRoot(t *testing.T) root.Dir {
	t.Helper()
	dir := root.Dir(t.TempDir())
	nettest.Must(t, os.MkdirAll(dir.Run(), 0o700))
	return dir
}

// wantPasses wants passes at these times, and no more of them within an hour.
func wantPasses(t *testing.T, f *failing, want ...time.Duration) {
	t.Helper()
	time.Sleep(time.Hour) // not real
	synctest.Wait()
	if !slices.Equal(f.passes, want) {
		t.Errorf("passes at %v, want %v", f.passes, want)
	}
	f.passes, f.begun = nil, time.Now()
}

// A pass for mapped ports fails some times. KeepMapped tries it again, with all of its ports, and at
// once when other ports are mapped meanwhile.
func TestMappedAgain(t *testing.T) {
	mapped := func(tr *Traffic, port uint16) {
		tr.Mapped([]nft.Mapping{{Protocol: "udp", Host: netip.AddrPortFrom(netip.IPv4Unspecified(), port)}})
		synctest.Wait()
	}
	wantPorts := func(f *failing, want ...uint16) {
		if !slices.Equal(f.ports, want) {
			t.Errorf("the last pass looked for the ports %v, want %v", f.ports, want)
		}
	}
	keep(t, 3, (*Traffic).KeepMapped, func(tr *Traffic, f *failing) {
		mapped(tr, 53)
		wantPasses(t, f, 0, 1250*time.Millisecond, 3500*time.Millisecond, 7750*time.Millisecond)
		wantPorts(f, 53)
	})
	keep(t, 1, (*Traffic).KeepMapped, func(tr *Traffic, f *failing) {
		mapped(tr, 53)
		mapped(tr, 54)
		wantPasses(t, f, 0, mappedEvery)
		wantPorts(f, 53, 54)
		mapped(tr, 55)
		wantPorts(f, 55)
	})
}

// A pass for connections that began without the rules fails some times, and KeepHidden tries it again.
func TestExposedAgain(t *testing.T) {
	keep(t, 8, (*Traffic).KeepHidden, func(tr *Traffic, f *failing) {
		tr.Exposed()
		const s = time.Second
		wantPasses(t, f, 0, 1*s, 3*s, 7*s, 15*s, 31*s, 63*s, 123*s, 183*s)
		tr.Exposed()
		wantPasses(t, f, 0)
	})
}
