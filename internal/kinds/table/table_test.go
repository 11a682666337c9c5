package table

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"testing"

	"github.com/google/nftables"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kinds/kindtest"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/stamp"
)

func TestMain(m *testing.M) { nettest.Main(m) }

const instance = "instance22"

func ruleset() nft.Ruleset {
	return nft.Ruleset{
		Instance: instance, CutLow: 1<<30 + 2, CutHigh: 1<<30 + 1023, Masquerade: true,
		Pools: []netip.Prefix{netip.MustParsePrefix("10.88.0.0/16"), netip.MustParsePrefix("fd88::/64")},
	}
}

// newHold returns an owner's hold of an instance's table.
func newHold(instance string) hold.Hold {
	return hold.Hold{Owner: hold.NewID(), Spec: &Spec{Instance: instance}}
}

// kind wraps a kind's functions that take several holds, for one hold each.
type kind struct {
	t *testing.T
	hold.Kind
}

func (k kind) acquire(h hold.Hold) error { return k.Acquire(k.t.Context(), h) }
func (k kind) verify(h hold.Hold) error  { return k.Verify(k.t.Context(), nil, []hold.Hold{h})[0] }
func (k kind) release(h hold.Hold) error { return k.Release(k.t.Context(), []hold.Hold{h})[0] }

func (k kind) must(err error) {
	k.t.Helper()
	nettest.Must(k.t, err)
}

func (k kind) is(err, want error) {
	k.t.Helper()
	if !errors.Is(err, want) {
		k.t.Fatalf("got %v, want %v", err, want)
	}
}

func TestKind(t *testing.T) {
	at := nettest.Node(t)
	kindtest.Run(t, kindtest.Kind{
		Kind:     New(Options{Tables: nft.Open(at), Ruleset: ruleset()}).Kind(),
		Spec:     func(testing.TB, hold.ID) hold.Spec { return &Spec{Instance: instance} },
		Alone:    true,
		Example:  &Spec{Instance: instance},
		Snapshot: func() string { return nettest.Snapshot(t, at).String() },
		Disguise: func(testing.TB, hold.Hold) {
			change(t, at, func(c *nftables.Conn) {
				c.FlushTable(&nftables.Table{Name: stamp.Table(instance), Family: nftables.TableFamilyINet})
			})
		},
	})
}

func TestHold(t *testing.T) {
	at := nettest.Node(t)
	k := kind{t, New(Options{Tables: nft.Open(at), Ruleset: ruleset()}).Kind()}
	h := newHold(instance)

	k.is(k.verify(h), hold.ErrGone)
	k.must(k.release(h)) // although nobody has taken h
	for range 2 {
		k.must(k.acquire(h))
		k.must(k.verify(h))
	}
	found, err := k.Find(t.Context(), nil)
	if err != nil || len(found) != 1 || found[0].Owner != h.Owner || found[0].Spec.String() != h.Spec.String() {
		t.Errorf("found %v, %v, want %v", found, err, h)
	}
	change(t, at, func(c *nftables.Conn) {
		c.FlushTable(&nftables.Table{Name: stamp.Table(instance), Family: nftables.TableFamilyINet})
	})
	k.is(k.verify(h), hold.ErrChanged)
	if found, err := k.Find(t.Context(), nil); err != nil || len(found) != 1 || found[0].Owner != h.Owner {
		t.Errorf("found %v, %v, want %v, whose comments are lost", found, err, h)
	}
	k.must(k.acquire(h))
	for range 2 {
		k.must(k.release(h))
		k.is(k.verify(h), hold.ErrGone)
	}
	if found, err := k.Find(t.Context(), nil); err != nil || len(found) != 0 {
		t.Errorf("found %v, %v after the release", found, err)
	}
}

// A late Release or Acquire of one owner does not touch another owner's table. Acquire takes over a
// table that no owner has any more.
func TestOwners(t *testing.T) {
	tables := nft.Open(nettest.Node(t))
	k := kind{t, New(Options{Tables: tables, Ruleset: ruleset()}).Kind()}
	a, b := newHold(instance), newHold(instance)
	k.must(k.acquire(a))
	k.is(k.acquire(b), hold.ErrForeign)
	k.must(k.release(b))
	k.must(k.verify(a))

	restarted := kind{t, New(Options{Tables: tables, Ruleset: ruleset()}).Kind()}
	restarted.must(restarted.acquire(b))
	restarted.must(restarted.verify(b))
	restarted.is(restarted.verify(a), hold.ErrGone)
	restarted.must(restarted.release(a))
	restarted.must(restarted.verify(b))
}

// After a restart Run watches over a table that Verify has found right.
func TestRestart(t *testing.T) {
	at := nettest.Node(t)
	h := newHold(instance)
	before := kind{t, New(Options{Tables: nft.Open(at), Ruleset: ruleset()}).Kind()}
	before.must(before.acquire(h))

	e := New(Options{Tables: nft.Open(at), Ruleset: ruleset()})
	run(t, e, nil)
	k := kind{t, e.Kind()}
	k.must(k.verify(h))
	nettest.Eventually(t, "the table to be known as intact", e.Intact)
	change(t, at, (*nftables.Conn).FlushRuleset)
	nettest.Eventually(t, "the table to be restored", func() bool { return k.verify(h) == nil })
}

// Two agents are on one node, and somebody flushes all of nftables.
func TestRunRestores(t *testing.T) {
	at := nettest.Node(t)
	drifts := make(chan error, 100)
	e := New(Options{Tables: nft.Open(at), Ruleset: ruleset()})
	stop := run(t, e, drifts)
	other := ruleset()
	other.Instance, other.CutLow, other.CutHigh = "jihgfedcba", 1<<30+1026, 1<<30+2047
	o := New(Options{Tables: nft.Open(at), Ruleset: other})
	run(t, o, make(chan error, 100))
	if e.Intact() {
		t.Error("intact before it is acquired")
	}
	stop()
	k, h := kind{t, e.Kind()}, newHold(instance)
	k.must(k.acquire(h))
	ko, ho := kind{t, o.Kind()}, newHold(other.Instance)
	ko.must(ko.acquire(ho))
	run(t, e, drifts)
	both := func() bool { return e.Intact() && o.Intact() }
	nettest.Eventually(t, "both tables to be intact", both)

	table := &nftables.Table{Name: stamp.Table(instance), Family: nftables.TableFamilyINet}
	for _, tt := range []struct {
		name string
		want error
		edit func(*nftables.Conn)
	}{
		{"nft flush ruleset", hold.ErrGone, (*nftables.Conn).FlushRuleset},
		{"nft delete table", hold.ErrGone, func(c *nftables.Conn) { c.DelTable(table) }},
		{"nft flush table", hold.ErrChanged, func(c *nftables.Conn) { c.FlushTable(table) }},
	} {
		locked(e, func() {
			change(t, at, tt.edit)
			nettest.Eventually(t, tt.name+" to be noticed", func() bool { return !e.Intact() })
		})
		k.is(<-drifts, tt.want)
		nettest.Eventually(t, "the tables to be intact after "+tt.name, both)
		k.must(k.verify(h))
		ko.must(ko.verify(ho))
	}
}

// Strays is not whole while nobody watches the table, and from the moment that others touch the table until MarkStrays:
// also if the sets stay, and if the table is right again.
func TestStraysOfATouchedTable(t *testing.T) {
	at := nettest.Node(t)
	r := ruleset()
	r.Live, r.HostPorts = 1<<30, true
	e := New(Options{Tables: nft.Open(at), Ruleset: r})
	k, h := kind{t, e.Kind()}, newHold(instance)
	k.must(k.acquire(h))
	whole := func() bool {
		_, whole, err := e.Strays(nil)
		k.must(err)
		return whole
	}
	k.is(e.MarkStrays(), kernel.ErrAgain)
	drifts := make(chan error, 100)
	run(t, e, drifts)
	table := &nftables.Table{Name: stamp.Table(instance), Family: nftables.TableFamilyINet}
	for name, edit := range map[string]func(*nftables.Conn){
		"flush table": func(c *nftables.Conn) { c.FlushTable(table) },
		"add a chain": func(c *nftables.Conn) { c.AddChain(&nftables.Chain{Name: "foreign", Table: table}) },
	} {
		nettest.Eventually(t, "the table to be intact", e.Intact)
		k.must(e.MarkStrays())
		nettest.Eventually(t, "the strays to be whole", whole) // the news of the mark come late
		locked(e, func() {
			change(t, at, edit)
			nettest.Eventually(t, name+" to be noticed", func() bool { return !whole() })
		})
		<-drifts
		nettest.Eventually(t, "the table to be intact again", e.Intact)
		if whole() {
			t.Errorf("%s: the strays are whole", name)
		}
	}
}

// Somebody makes the table dormant and wakes it up again, or deletes it; and somebody else
// puts it right before Run does. Run reports that the table may have been out of force.
func TestRunTellsOfWhatIsRightAgain(t *testing.T) {
	nettest.Program(t, "nft")
	name := stamp.Table(instance)
	for what, touch := range map[string]func(k kind, at *ns.Netns, e *Keeper, owner hold.ID){
		"asleep and awake": func(k kind, at *ns.Netns, _ *Keeper, _ hold.ID) {
			nettest.Run(k.t, at, "nft add table inet "+name+" { flags dormant; }")
			nettest.Run(k.t, at, "nft add table inet "+name)
		},
		"deleted, and written by a sweep": func(k kind, at *ns.Netns, e *Keeper, owner hold.ID) {
			change(k.t, at, (*nftables.Conn).FlushRuleset)
			k.must(e.write(e.wanted(owner, instance)))
		},
		"written by others": func(k kind, at *ns.Netns, _ *Keeper, owner hold.ID) {
			r := ruleset()
			r.Owner = string(owner)
			k.must(nft.Open(at).Replace(r))
		},
	} {
		t.Run(what, func(t *testing.T) {
			at := nettest.Node(t)
			e, well := runWell(t, at)
			k, h := kind{t, e.Kind()}, newHold(instance)
			k.must(k.acquire(h))
			nettest.Eventually(t, "the table to be intact", e.Intact)
			if len(well) > 0 {
				t.Error("Run reports at the beginning, when nobody has touched the table")
			}
			locked(e, func() { touch(k, at, e, h.Owner) })
			<-well
			nettest.Eventually(t, "the table to be intact again", e.Intact)
		})
	}
}

// varied returns rulesets for different i of which each differs from the one before: in addresses alone if i is odd, and in
// rules, too, if it is even.
func varied(i int) nft.Ruleset {
	r := ruleset()
	r.Excluded = r.Excluded.With(netip.PrefixFrom(netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}), 32))
	r.FirstPort = uint16(2000 + i/2)
	return r
}

// Run does not report the agent's own changes of the table, nor others' of other tables.
func TestRunTellsOfNothingElse(t *testing.T) {
	at := nettest.Node(t)
	e, well := runWell(t, at)
	k := kind{t, e.Kind()}
	k.must(k.acquire(newHold(instance)))
	nettest.Eventually(t, "the table to be intact", e.Intact)
	for i := range 4 {
		change(t, at, func(c *nftables.Conn) {
			c.AddTable(&nftables.Table{Name: "firewall", Family: nftables.TableFamilyINet})
		})
		k.must(e.SetRuleset(varied(i)))
		nettest.Eventually(t, "the news", func() bool { return upToDate(k, e) })
	}
	if len(well) > 0 {
		t.Errorf("told of the agent's own doing, or of others' tables, %d times", len(well))
	}
}

// runWell runs a keeper in which nothing has to be mended, until the test ends. Each report goes to well.
func runWell(t *testing.T, at *ns.Netns) (e *Keeper, well <-chan struct{}) {
	e = New(Options{Tables: nft.Open(at), Ruleset: ruleset()})
	all := make(chan struct{}, 100)
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		e.Run(ctx, func(drift, err error) {
			if drift != nil || err != nil {
				t.Errorf("reported %v, %v", drift, err)
			}
			all <- struct{}{}
		})
	})
	t.Cleanup(func() { stop(); running.Wait() })
	return e, all
}

// A table that Release has deleted stays deleted, also while Run runs.
func TestRunLeavesReleasedAlone(t *testing.T) {
	e := New(Options{Tables: nft.Open(nettest.Node(t)), Ruleset: ruleset()})
	drifts := make(chan error, 100)
	run(t, e, drifts)
	k, h := kind{t, e.Kind()}, newHold(instance)
	k.must(k.acquire(h))
	k.must(k.release(h))
	if held, drift, err := e.mend(); held || drift != nil || err != nil {
		t.Errorf("there was something to mend: %v, %v, %v", held, drift, err)
	}
	k.is(k.verify(h), hold.ErrGone)
	if e.Intact() {
		t.Error("a table that is gone is intact")
	}
}

// When the configuration changes the table follows, and Run does not report a drift.
func TestSetRuleset(t *testing.T) {
	at := nettest.Node(t)
	e := New(Options{Tables: nft.Open(at), Ruleset: ruleset()})
	drifts := make(chan error, 100)
	run(t, e, drifts)
	k, h := kind{t, e.Kind()}, newHold(instance)
	r := ruleset()
	r.Pools = append(r.Pools, netip.MustParsePrefix("10.99.0.0/16"))
	k.must(e.SetRuleset(r)) // nobody has the table, so SetRuleset writes nothing
	k.is(k.verify(h), hold.ErrGone)
	k.must(k.acquire(h))
	for i := range 20 {
		r.Masquerade = i%2 == 0
		k.must(e.SetRuleset(r))
		r.Owner = string(h.Owner)
		if _, err := nft.Open(at).Verify(r); err != nil {
			t.Fatal(err)
		}
	}
	nettest.Eventually(t, "the news of it all to be heard", func() bool { return upToDate(k, e) })
	if !e.Intact() {
		t.Error("not intact")
	}
	select {
	case drift := <-drifts:
		t.Errorf("drift: %v", drift)
	default:
	}
}

// counted counts the tables that are written anew, and read.
type counted struct {
	tables
	written, read int
}

func (c *counted) Replace(r nft.Ruleset) error       { c.written++; return c.tables.Replace(r) }
func (c *counted) Change(was, now nft.Ruleset) error { c.written++; return c.tables.Change(was, now) }
func (c *counted) Verify(r nft.Ruleset) (nft.Generation, error) {
	c.read++
	return c.tables.Verify(r)
}

// If a ruleset differs in addresses alone, such as those of a cluster's nodes, SetRuleset neither writes nor reads the table: it
// changes these addresses, and the table stays intact. If others touch the table meanwhile, it gets the last ruleset.
func TestSetAddresses(t *testing.T) {
	at := nettest.Node(t)
	e := New(Options{Tables: nft.Open(at), Ruleset: ruleset()})
	c := &counted{tables: e.tables}
	e.tables = c
	run(t, e, nil)
	k, h := kind{t, e.Kind()}, newHold(instance)
	k.must(k.acquire(h))
	nettest.Eventually(t, "the table to be intact", e.Intact)
	var last nft.Ruleset
	locked(e, func() { c.written, c.read = 0, 0 })
	for i := range 20 {
		last = varied(2*i + 1)
		last.FirstPort = 0
		k.must(e.SetRuleset(last))
		if !e.Intact() {
			t.Error("the table is not intact")
		}
	}
	locked(e, func() {
		if c.written > 0 || c.read > 0 {
			t.Errorf("the table was written %d times, and read %d times", c.written, c.read)
		}
	})
	last.Owner = string(h.Owner)
	if _, err := nft.Open(at).Verify(last); err != nil {
		t.Error(err)
	}

	change(t, at, func(c *nftables.Conn) { c.FlushRuleset() })
	last.Excluded = varied(99).Excluded
	k.must(e.SetRuleset(last))
	nettest.Eventually(t, "the table to be intact again", e.Intact)
	if _, err := nft.Open(at).Verify(last); err != nil {
		t.Error(err)
	}
}

// Intact is false while Run does not run, because nobody would hear of a change.
func TestNotIntactUnwatched(t *testing.T) {
	e := New(Options{Tables: nft.Open(nettest.Node(t)), Ruleset: ruleset()})
	k, h := kind{t, e.Kind()}, newHold(instance)
	k.must(k.acquire(h))
	if e.Intact() {
		t.Error("intact, and nobody watches")
	}
	stop := run(t, e, nil)
	nettest.Eventually(t, "the table to be intact", e.Intact)
	stop()
	if e.Intact() {
		t.Error("intact, and nobody watches any more")
	}
}

// run calls e.Run until the test ends or calls stop. It sends drifts to the channel, if there is one. A
// failure fails the test.
func run(t *testing.T, e *Keeper, drifts chan<- error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		e.Run(ctx, func(drift, err error) {
			if err != nil {
				t.Errorf("Run: %v", err)
			}
			if drift != nil && drifts != nil {
				drifts <- drift
			}
		})
	}()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

// locked calls f while Run cannot mend the table. For Run to hear meanwhile what f does, Run must not wait
// for the lock already when locked takes it: a test either begins Run after acquire, so that an intact table
// means that Run waits for news, or does not wait in f. A test that ends in f leaves no lock behind: Run,
// and so the test's end, would wait for the lock for ever.
func locked(e *Keeper, f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f()
}

// change changes nftables as another program would.
func change(t *testing.T, at *ns.Netns, f func(*nftables.Conn)) {
	t.Helper()
	c, err := nftables.New(nftables.WithNetNSFd(at.Fd()))
	nettest.Must(t, err)
	f(c)
	nettest.Must(t, c.Flush())
}

// While a Report takes its time, Intact tells of what others do to the table nevertheless.
func TestHearsDuringReport(t *testing.T) {
	at := nettest.Node(t)
	e := New(Options{Tables: nft.Open(at), Ruleset: ruleset()})
	k := kind{t, e.Kind()}
	k.must(k.acquire(newHold(instance)))
	reports, goOn := make(chan error), make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		e.Run(ctx, func(drift, _ error) { reports <- drift; <-goOn })
	})
	defer func() { cancel(); close(goOn); running.Wait() }()
	nettest.Eventually(t, "the table to be intact", e.Intact)
	change(t, at, (*nftables.Conn).FlushRuleset)
	k.is(<-reports, hold.ErrGone)
	if !e.Intact() {
		t.Error("a report before the table is right")
	}
	change(t, at, (*nftables.Conn).FlushRuleset)
	nettest.Eventually(t, "the second change to be noticed", func() bool { return !e.Intact() })
	goOn <- struct{}{}
	k.is(<-reports, hold.ErrGone)
	nettest.Eventually(t, "the table to be intact again", e.Intact)
}

// Run reports a table that it cannot watch, and Intact is false for such a table.
func TestRunReportsFailure(t *testing.T) {
	at := nettest.Node(t)
	e := New(Options{Tables: nft.Open(at), Ruleset: ruleset()})
	k := kind{t, e.Kind()}
	k.must(k.acquire(newHold(instance)))
	at.Close() // so that Run cannot watch the table
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	reports := 0
	e.Run(ctx, func(drift, err error) {
		if drift != nil || err == nil || e.Intact() {
			t.Errorf("reported %v, %v, intact %v", drift, err, e.Intact())
		}
		if reports++; reports == 2 {
			cancel()
		}
	})
	if reports != 2 {
		t.Errorf("%d reports", reports)
	}
}
