package traffic

import (
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-net/berth/internal/boottime"
	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/ground"
	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/kinds"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/node"
)

// slow is a kernel that remembers traffic of one address, and that forgets it only when it is let.
type slow struct {
	kinds.Tracked
	at       netip.Addr
	let      chan struct{}
	answered chan bool // whether ForgetUnless has forgotten the address
}

func (s *slow) Named(is func(netip.Addr) bool) ([]netip.Addr, error) {
	return slices.DeleteFunc([]netip.Addr{s.at}, func(a netip.Addr) bool { return !is(a) }), nil
}

func (s *slow) ForgetUnless(addrs []netip.Addr, spared func(netip.Addr) bool) error {
	<-s.let
	s.answered <- slices.Contains(addrs, s.at) && !spared(s.at)
	return nil
}

// led is a node on which packets to all addresses have a way out, or none has.
type led struct {
	node.Conn
	away bool
}

func (l led) Ways(addrs []netip.Addr) (away, own []netip.Addr) {
	if l.away {
		away = addrs
	}
	return away, nil
}

func (led) Reached([]netip.Addr) []netip.Addr { return nil }

// noting is a table that notes addresses.
type noting struct {
	kinds.Table
	noted []netip.Addr
	hangs chan struct{} // not nil: ClearStrays answers when it is closed
}

func (n *noting) Strays(addrs []netip.Addr) ([]netip.Addr, error) {
	return slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool { return !slices.Contains(n.noted, a) }), nil
}

func (n *noting) ClearStrays(addrs []netip.Addr) error {
	if n.hangs != nil {
		<-n.hangs
	}
	n.noted = slices.DeleteFunc(n.noted, func(a netip.Addr) bool { return slices.Contains(addrs, a) })
	return nil
}

// A claim goes on without a pass over connection tracking that takes longer than a second. When the pass
// comes to its end at last, it leaves alone what the pod has begun since.
func TestLatePassSparesThePod(t *testing.T) {
	for name, late := range map[string]struct {
		away  bool
		taint bool
		stray bool
	}{
		"of a tainted pool":                        {taint: true},
		"of an address that can be reached":        {away: true},
		"of an address that others have reached":   {stray: true},
		"of an address that others reach, as ever": {away: true, stray: true},
	} {
		t.Run(name, func(t *testing.T) {
			for _, hangs := range []bool{false, true} {
				synctest.Test(t, func(t *testing.T) {
					at := netip.MustParseAddr("10.88.0.7")
					s := &slow{at: at, let: make(chan struct{}), answered: make(chan bool, 1)}
					cidr := netip.PrefixFrom(at, 32)
					c := &config.Config{Pools: []ipam.PoolConfig{{Name: "a", CIDRs: []netip.Prefix{cidr}}}}
					d := &daemon.Core{Clock: boottime.NewClock(nil, nil)}
					d.Log = slog.New(slog.DiscardHandler)
					n := &node.Node{Tracked: s, Conn: led{away: late.away}}
					table := &noting{}
					if n.Table = table; late.stray {
						table.noted = []netip.Addr{at}
					}
					g, err := ground.New(d, n, c)
					nettest.Must(t, err)
					tr := New(d, n, g, nil, nil)
					if late.taint {
						g.Pools.Taint(cidr)
					}
					if !hangs {
						close(s.let)
					}
					began := time.Now()
					claim, err := tr.Claim(t.Context(), "a", nil)
					if err != nil || claim.V4 != at || (time.Since(began) > 0) != hangs {
						t.Errorf("%v after %v: %v", claim, time.Since(began), err)
					}
					if hangs {
						close(s.let)
					}
					if forgotten := <-s.answered; forgotten == hangs {
						t.Errorf("the kernel forgets the address: %t", forgotten)
					}
				})
			}
		})
	}
}

// A claim has the kernel forget a noted address's connections once. If connection tracking fails meanwhile, the
// next claim of the address asks again, although the table notes the address no more.
func TestStraysAreForgotten(t *testing.T) {
	at := netip.MustParseAddr("10.88.0.7")
	c := &config.Config{Pools: []ipam.PoolConfig{{Name: "a", CIDRs: []netip.Prefix{netip.PrefixFrom(at, 32)}}}}
	d := &daemon.Core{Clock: boottime.NewClock(nil, nil)}
	d.Log = slog.New(slog.DiscardHandler)
	f := &forgetful{}
	n := &node.Node{Tracked: f, Conn: led{}}
	n.Table = &noting{noted: []netip.Addr{at}}
	g, err := ground.New(d, n, c)
	nettest.Must(t, err)
	tr := New(d, n, g, nil, nil)
	for i, fails := range []bool{true, false, false} {
		f.err = map[bool]error{true: errors.New("not now")}[fails]
		claim, err := tr.Claim(t.Context(), "a", nil)
		nettest.Must(t, err)
		tr.Unclaim(claim)
		if want := min(i+1, 2); f.asked != want {
			t.Errorf("after claim %d the kernel was asked %d times, want %d", i+1, f.asked, want)
		}
	}
}

// forgetful is a kernel that counts how often it is asked to forget.
type forgetful struct {
	kinds.Tracked
	err   error
	asked int
}

func (f *forgetful) ForgetUnless([]netip.Addr, func(netip.Addr) bool) error {
	f.asked++
	return f.err
}

// A transaction of another program keeps the table from clearing a noted address. The kernel forgets the address's
// connections all the same.
func TestStraysAreForgottenWhileTheTableHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		at := netip.MustParseAddr("10.88.0.7")
		c := &config.Config{Pools: []ipam.PoolConfig{{Name: "a", CIDRs: []netip.Prefix{netip.PrefixFrom(at, 32)}}}}
		d := &daemon.Core{Clock: boottime.NewClock(nil, nil)}
		d.Log = slog.New(slog.DiscardHandler)
		f, table := &forgetful{}, &noting{noted: []netip.Addr{at}, hangs: make(chan struct{})}
		n := &node.Node{Tracked: f, Conn: led{}}
		n.Table = table
		g, err := ground.New(d, n, c)
		nettest.Must(t, err)
		if claim, err := New(d, n, g, nil, nil).Claim(t.Context(), "a", nil); err != nil || claim.V4 != at || f.asked != 1 {
			t.Errorf("%v: %v; the kernel was asked %d times", claim, err, f.asked)
		}
		close(table.hangs)
	})
}
