package traffic

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/boottime"
	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/ground"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/kinds"
	"github.com/berth-net/berth/internal/kinds/link"
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

// lone is a node on which nobody has an address.
type lone struct{ node.Conn }

func (lone) Reached([]netip.Addr) []netip.Addr { return nil }

// noting is a table that notes addresses.
type noting struct {
	kinds.Table
	noted []netip.Addr
	lost  bool          // the mark is gone
	fails error         // of MarkStrays
	lacks nft.Parts     // of the kernel
	marks int           // calls of MarkStrays
	hangs chan struct{} // not nil: ClearStrays answers when it is closed
	mu    sync.Mutex
}

func (n *noting) Strays(addrs []netip.Addr) ([]netip.Addr, bool, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool { return !slices.Contains(n.noted, a) }), !n.lost, nil
}

func (n *noting) Noted() ([]netip.Addr, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.noted), nil
}

func (n *noting) ClearStrays(addrs []netip.Addr) error {
	if n.hangs != nil {
		<-n.hangs
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.noted = slices.DeleteFunc(n.noted, func(a netip.Addr) bool { return slices.Contains(addrs, a) })
	return nil
}

func (n *noting) MarkStrays() error {
	n.marks++
	if n.fails == nil {
		n.noted, n.lost = nil, false
	}
	return n.fails
}

func (n *noting) Lacks() nft.Parts { return n.lacks }

// claimed is the address of claiming's only pool, a.
var claimed = netip.MustParseAddr("10.88.0.7")

// claiming returns the traffic of a node with one address, and its ground.
func claiming(t *testing.T, tracked kinds.Tracked, table *noting) (*Traffic, *ground.Ground) {
	t.Helper()
	c := &config.Config{Pools: []ipam.PoolConfig{{Name: "a", CIDRs: []netip.Prefix{netip.PrefixFrom(claimed, 32)}}}}
	return claimingFrom(t, c, tracked, table)
}

func claimingFrom(t *testing.T, c *config.Config, tracked kinds.Tracked, table *noting) (*Traffic, *ground.Ground) {
	t.Helper()
	d := &daemon.Core{Clock: boottime.NewClock(nil, nil)}
	d.Log = slog.New(slog.DiscardHandler)
	n := &node.Node{Tracked: tracked, Conn: lone{}}
	n.Table = table
	g, err := ground.New(d, n, c)
	nettest.Must(t, err)
	return New(d, n, g, nil), g
}

// claim claims the address.
func claim(t *testing.T, tr *Traffic) ipam.Claim {
	t.Helper()
	c, err := tr.Claim(t.Context(), "a", nil)
	if err != nil || c.V4 != claimed {
		t.Fatalf("%v: %v", c, err)
	}
	return c
}

// A claim goes on without a pass over connection tracking that takes longer than a second. When the pass
// comes to its end at last, it leaves alone what the pod has begun since.
func TestLatePassSparesThePod(t *testing.T) {
	for name, late := range map[string]struct{ taint, stray, lost, lacks bool }{
		"of a tainted pool":                      {taint: true},
		"of an address that others have reached": {stray: true},
		"of a table that has lost its notes":     {lost: true},
		"of a table that notes nothing":          {lost: true, lacks: true},
		"of all":                                 {taint: true, stray: true, lost: true},
	} {
		t.Run(name, func(t *testing.T) {
			for _, hangs := range []bool{false, true} {
				synctest.Test(t, func(t *testing.T) {
					s := &slow{at: claimed, let: make(chan struct{}), answered: make(chan bool, 9)}
					table := &noting{lost: late.lost}
					if late.stray {
						table.noted = []netip.Addr{claimed}
					}
					if late.lacks {
						table.lacks = nft.HostPorts
					}
					tr, g := claiming(t, s, table)
					if late.taint {
						g.Pools.Taint(netip.PrefixFrom(claimed, 32))
					}
					if !hangs {
						close(s.let)
					}
					began := time.Now()
					claim(t, tr)
					if hung := time.Since(began) > 0; hung != hangs {
						t.Errorf("it took %s", time.Since(began))
					}
					if hangs {
						close(s.let)
					}
					synctest.Wait()
					close(s.answered)
					forgotten := false
					for f := range s.answered {
						forgotten = forgotten || f
					}
					if forgotten == hangs {
						t.Errorf("the kernel forgets the address: %t", forgotten)
					}
				})
			}
		})
	}
}

// forgetful is a kernel that counts how often it is asked to forget.
type forgetful struct {
	kinds.Tracked
	err   error
	asked int
	named []netip.Addr // that it has connections of
}

func (f *forgetful) ForgetUnless([]netip.Addr, func(netip.Addr) bool) error {
	f.asked++
	return f.err
}

func (f *forgetful) Named(is func(netip.Addr) bool) ([]netip.Addr, error) {
	return slices.DeleteFunc(slices.Clone(f.named), func(a netip.Addr) bool { return !is(a) }), f.err
}

// A claim has the kernel forget a noted address's connections once. If connection tracking fails meanwhile, the
// next claim of the address asks again, although the table notes the address no more.
func TestStraysAreForgotten(t *testing.T) {
	f := &forgetful{}
	tr, _ := claiming(t, f, &noting{noted: []netip.Addr{claimed}})
	for i, fails := range []bool{true, false, false} {
		f.err = map[bool]error{true: errors.New("not now")}[fails]
		tr.Unclaim(claim(t, tr))
		if want := min(i+1, 2); f.asked != want {
			t.Errorf("after claim %d the kernel was asked %d times, want %d", i+1, f.asked, want)
		}
	}
}

// Somebody reaches a claimed address past the pods before the pod has its route. Behind that, Unbar has the kernel forget
// the connection, and asks nothing of the kernel if there is none, or if the pod has long been reached.
func TestUnbar(t *testing.T) {
	for name, reached := range map[string]struct {
		how   func(g *ground.Ground, table *noting)
		asked int
	}{
		"not at all":            {func(*ground.Ground, *noting) {}, 0},
		"a taint":               {func(g *ground.Ground, _ *noting) { g.Pools.Taint(netip.PrefixFrom(claimed, 32)) }, 1}, // as a reload does when the table has its rules
		"a note":                {func(_ *ground.Ground, table *noting) { table.noted = []netip.Addr{claimed} }, 1},
		"a note that is lost":   {func(_ *ground.Ground, table *noting) { table.lost = true }, 1},
		"a table without notes": {func(_ *ground.Ground, table *noting) { table.lost, table.lacks = true, nft.HostPorts }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			f, table := &forgetful{}, &noting{}
			tr, g := claiming(t, f, table)
			c := claim(t, tr)
			for _, when := range []string{"before", "after"} {
				reached.how(g, table)
				if tr.Unbar(c.Addrs()); f.asked != reached.asked || len(table.noted)+len(g.Pools.Doubtful(c.Addrs())) > 0 {
					t.Errorf("%s the pod is reached: the kernel was asked %d times, not %d; still noted are %v", when, f.asked, reached.asked, table.noted)
				}
			}
		})
	}
}

// The agent is killed before an ADD has come to its end, or a pod's link is gone for a while, and the table has noted an address.
// The next agent, or the mend, has the kernel forget the address's connections, although the mark takes the note away; but not
// those of a pod that has long been reached.
func TestNotedInUse(t *testing.T) {
	for name, notes := range map[string]func(tr *Traffic, table *noting){
		"before the mark": func(tr *Traffic, table *noting) {
			table.noted, table.lost = []netip.Addr{claimed, claimed.Next()}, true
			tr.mark()
		},
		"behind the mark": func(tr *Traffic, table *noting) {
			table.noted = []netip.Addr{claimed}
			tr.Mended("flows", []netip.Addr{claimed})
			tr.Mended(link.KindName, []netip.Addr{claimed})
		},
	} {
		for asked, settled := range []bool{true, false} {
			t.Run(fmt.Sprint(name, " settled ", settled), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f, table := &forgetful{}, &noting{}
					tr, g := claiming(t, f, table)
					g.Pools.Restore([]netip.Addr{claimed}, nil)
					if settled {
						g.Pools.Settle([]netip.Addr{claimed})
					}
					notes(tr, table)
					ctx, cancel := context.WithCancel(t.Context())
					ended := make(chan struct{})
					go func() { tr.KeepUnbarred(ctx); close(ended) }()
					synctest.Wait()
					if f.asked != asked || slices.Contains(table.noted, claimed) || len(g.Pools.Doubtful([]netip.Addr{claimed})) > 0 {
						t.Errorf("the kernel was asked %d times, not %d; noted are %v", f.asked, asked, table.noted)
					}
					cancel()
					<-ended
				})
			})
		}
	}
}

// The agent starts. Only a pod that has come lately, and whose address the table has noted, may not have been reached when the
// last agent ended: a repeated ADD has the kernel forget the address's connections. All others keep theirs.
func TestResumed(t *testing.T) {
	for name, pod := range map[string]struct {
		age   time.Duration
		noted bool
		asked int
	}{
		"new": {time.Second, false, 0}, "new, and noted": {time.Second, true, 1}, "old, and noted": {time.Hour, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			f, table := &forgetful{}, &noting{}
			tr, g := claiming(t, f, table)
			tr.Boot, tr.Boottime = "boot", func() int64 { return int64(2 * time.Hour) }
			tr.index = attachment.NewIndex()
			tr.index.Describe(func(hold.Owner, attachment.Record) attachment.Interface {
				return attachment.Interface{Addresses: []netip.Addr{claimed}}
			})
			rec := attachment.Record{Epoch: "boot/netns", Made: int64(2*time.Hour - pod.age)}
			nettest.Must(t, tr.index.Restore([]hold.Owner{{ID: hold.NewID(), Meta: rec.Encode()}}))
			g.Pools.Restore([]netip.Addr{claimed}, nil)
			g.Pools.Taint(netip.PrefixFrom(claimed, 32)) // as the agent does with its table
			if pod.noted {
				table.noted = []netip.Addr{claimed}
			}
			tr.Resumed(nil)
			table.noted = nil // as the mark does
			if tr.Unbar([]netip.Addr{claimed}); f.asked != pod.asked {
				t.Errorf("the kernel was asked %d times, not %d", f.asked, pod.asked)
			}
		})
	}
}

// A transaction of another program keeps the table from clearing a noted address. The kernel forgets the address's
// connections all the same.
func TestStraysAreForgottenWhileTheTableHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, table := &forgetful{}, &noting{noted: []netip.Addr{claimed}, hangs: make(chan struct{})}
		tr, _ := claiming(t, f, table)
		if claim(t, tr); f.asked != 1 {
			t.Errorf("the kernel was asked %d times", f.asked)
		}
		tr.Unclaim(ipam.Claim{V4: claimed})
		close(table.hangs)
		synctest.Wait()
		table.noted, table.hangs = nil, nil // what began meanwhile is noted no more
		if claim(t, tr); f.asked != 2 {
			t.Errorf("behind a late clear the kernel was asked %d times", f.asked)
		}
	})
}

// Many claims come at once, and the table has noted all their addresses. One pass over connection tracking serves all
// claims that wait, and so none goes on without a pass.
func TestManyStraysAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &counting{forgotten: map[netip.Addr]bool{}}
		table := &noting{}
		c := &config.Config{Pools: []ipam.PoolConfig{{Name: "a", CIDRs: []netip.Prefix{netip.MustParsePrefix("10.88.0.0/24")}}}}
		for a := netip.MustParseAddr("10.88.0.0"); len(table.noted) < 256; a = a.Next() {
			table.noted = append(table.noted, a)
		}
		tr, _ := claimingFrom(t, c, k, table)
		var all sync.WaitGroup
		for range 60 {
			all.Go(func() {
				if c, err := tr.Claim(t.Context(), "a", nil); err != nil || !k.has(c.V4) {
					t.Errorf("%v of %v: the kernel remembers it", err, c)
				}
			})
		}
		all.Wait()
		if k.passes > 2 {
			t.Errorf("%d passes", k.passes)
		}
	})
}

// counting is a kernel that takes 0.8 s to go over connection tracking.
type counting struct {
	kinds.Tracked
	mu        sync.Mutex
	passes    int
	forgotten map[netip.Addr]bool
}

func (k *counting) ForgetUnless(addrs []netip.Addr, spared func(netip.Addr) bool) error {
	time.Sleep(800 * time.Millisecond)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.passes++
	for _, a := range addrs {
		if !spared(a) {
			k.forgotten[a] = true
		}
	}
	return nil
}

func (k *counting) has(a netip.Addr) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.forgotten[a]
}

// If the table has lost what it noted, a claim has the kernel forget its own addresses, and sets the mark. All other
// addresses are tainted: the next pass looks for those that the kernel remembers. While the mark cannot be set, each
// claim has its addresses forgotten.
func TestLostNotes(t *testing.T) {
	f := &forgetful{named: []netip.Addr{claimed}}
	table := &noting{lost: true, fails: errors.New("not now")}
	tr, g := claiming(t, f, table)
	for range 2 {
		asked := f.asked
		g.Pools.Free(claim(t, tr).V4, time.Time{})
		if _, err := tr.rinse(t.Context()); err != nil || f.asked == asked || !table.lost {
			t.Errorf("%v; the kernel was asked %d times; lost is %t", err, f.asked-asked, table.lost)
		}
	}
	table.fails = nil
	marks := table.marks
	c := claim(t, tr)
	if table.marks != marks+1 || table.lost || !g.Pools.Tainted("a") || len(g.Pools.Doubtful(c.Addrs())) > 0 {
		t.Errorf("%d marks, lost is %t, tainted %t, doubtful %v", table.marks-marks, table.lost, g.Pools.Tainted("a"), g.Pools.Doubtful(c.Addrs()))
	}
	g.Pools.Free(c.V4, time.Time{})
	_, err := tr.rinse(t.Context())
	nettest.Must(t, err)
	asked := f.asked
	if tr.Unclaim(claim(t, tr)); f.asked != asked || table.marks != marks+1 {
		t.Errorf("then the kernel was asked %d times, and marked %d times", f.asked-asked, table.marks-marks)
	}
}

// The ledger was lost, and pools wait for a pass over connection tracking. An ADD that comes while the table cannot note
// strays makes the pass, and has its address forgotten besides.
func TestLostLedgerAndNotes(t *testing.T) {
	f := &forgetful{}
	tr, g := claiming(t, f, &noting{lost: true, fails: errors.New("not now")})
	now := tr.Clock.Now()
	g.Pools.Quarantine(now.Add(-time.Hour), now, nil, nil)
	g.Pools.Taint(netip.PrefixFrom(claimed, 32))
	if claim(t, tr); f.asked != 1 {
		t.Errorf("the kernel was asked %d times", f.asked)
	}
}

// A pass leaves alone the address of a claim that it finds under way. That claim has the address forgotten itself.
func TestTaintDuringAClaim(t *testing.T) {
	f := &forgetful{}
	table := &asking{noting: &noting{}}
	tr, g := claiming(t, f, table.noting)
	tr.node.Table = table
	table.then = func() {
		table.lost = true
		nettest.Must(t, tr.suspect())
		_, err := tr.rinse(t.Context())
		nettest.Must(t, err)
	}
	c := claim(t, tr)
	if f.asked != 1 || g.Pools.Tainted("a") || len(g.Pools.Doubtful(c.Addrs())) > 0 {
		t.Errorf("the kernel was asked %d times; tainted %t; doubtful %v", f.asked, g.Pools.Tainted("a"), g.Pools.Doubtful(c.Addrs()))
	}
}

// asking does something when a claim asks for strays, once.
type asking struct {
	*noting
	then func()
}

func (a *asking) Strays(addrs []netip.Addr) ([]netip.Addr, bool, error) {
	if then := a.then; then != nil && len(addrs) > 0 {
		a.then = nil
		then()
	}
	return a.noting.Strays(addrs)
}
