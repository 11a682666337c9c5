package table

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/google/nftables"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/stamp"
)

// poor is the nftables of a kernel that lacks the parts that a test says. poor counts how often Keeper
// writes tables.
type poor struct {
	tables
	lacks   nft.Parts
	written int
	looked  int // how often Keeper has called Complete
}

func (p *poor) able(r nft.Ruleset) nft.Ruleset {
	if p.lacks != 0 {
		r.Live = 0
	}
	return r
}

func (p *poor) Replace(r nft.Ruleset) error {
	p.written++
	return p.tables.Replace(p.able(r))
}

func (p *poor) Change(_, now nft.Ruleset) error { return p.Replace(now) }

// Complete finds that the kernel supports no more than before.
func (p *poor) Complete(nft.Ruleset) error {
	p.looked++
	return nil
}

func (p *poor) Verify(r nft.Ruleset) (nft.Generation, error) { return p.tables.Verify(p.able(r)) }
func (p *poor) Lacks() nft.Parts                             { return p.lacks }

// Keeper calls Lacks once when the kernel lacks a part, and once when the kernel lacks the part no
// more. Until then each sweep's Retry looks for the part, and leaves the table alone.
func TestLacks(t *testing.T) {
	var told []nft.Parts
	r := ruleset()
	r.Live = 1 << 30
	at := nettest.Node(t)
	e := New(Options{Tables: nft.Open(at), Ruleset: r, Lacks: func(p nft.Parts) { told = append(told, p) }})
	p := &poor{tables: e.tables, lacks: nft.Sources}
	e.tables = p
	k, h := kind{t, e.Kind()}, newHold(instance)
	k.must(e.Retry()) // nobody has the table
	k.must(k.acquire(h))
	k.must(k.verify(h))
	for n := range 2 {
		k.must(e.Retry())
		if p.written != 1 || p.looked != n+1 || e.Lacks() != nft.Sources || !slices.Equal(told, []nft.Parts{nft.Sources}) {
			t.Errorf("written %d times, looked for %d times, lacks %b, told %b", p.written, p.looked, e.Lacks(), told)
		}
	}
	p.lacks = 0 // somebody has loaded the module
	k.is(k.verify(h), hold.ErrChanged)
	p.lacks = nft.Sources
	k.must(k.verify(h))
	e.tables = &mendOnWrite{poor: p}
	for range 2 {
		k.must(e.Retry())
	}
	if p.written != 2 || e.Lacks() != 0 || !slices.Equal(told, []nft.Parts{nft.Sources, 0}) {
		t.Errorf("mended: written %d times, lacks %b, told %b", p.written, e.Lacks(), told)
	}
	r.Owner = string(h.Owner)
	if _, err := nft.Open(at).Verify(r); err != nil {
		t.Error(err)
	}
}

// mendOnWrite supports all parts from the next Complete on.
type mendOnWrite struct{ *poor }

func (m *mendOnWrite) Complete(r nft.Ruleset) error {
	m.lacks = 0
	return m.Replace(r)
}

// Keeper calls Differs when the table differs, as long as it differs, and not for changes that the
// agent itself has written.
func TestDiffers(t *testing.T) {
	at := nettest.Node(t)
	var (
		e     *Keeper
		mu    sync.Mutex
		heard []error
	)
	h := newHold(instance)
	want := ruleset()
	want.Owner = string(h.Owner)
	e = New(Options{Tables: nft.Open(at), Ruleset: ruleset(), Differs: func() {
		_, err := nft.Open(at).Verify(want)
		if e.Intact() {
			t.Error("intact, and it differs")
		}
		mu.Lock()
		heard = append(heard, err)
		mu.Unlock()
	}})
	is := func(step string, errs ...error) {
		t.Helper()
		mu.Lock()
		defer mu.Unlock()
		if !slices.EqualFunc(heard, errs, errors.Is) {
			t.Errorf("%s: heard %v, want %v", step, heard, errs)
		}
		heard = nil
	}
	k := kind{t, e.Kind()}
	k.must(k.acquire(h))
	is("there is none yet", nft.ErrGone)
	run(t, e, nil)
	nettest.Eventually(t, "the table to be intact", e.Intact)
	for i := range 20 {
		k.must(e.SetRuleset(varied(i)))
	}
	nettest.Eventually(t, "the news of it all to be heard", func() bool { return upToDate(k, e) })
	is("written by the agent")
	for _, tt := range []struct {
		name string
		edit func(*nftables.Conn)
		want error
	}{
		{"flushed", (*nftables.Conn).FlushRuleset, nft.ErrGone},
		{"emptied", func(c *nftables.Conn) {
			c.FlushTable(&nftables.Table{Name: stamp.Table(instance), Family: nftables.TableFamilyINet})
		}, nft.ErrChanged},
	} {
		was := e.sound.Load()
		change(t, at, tt.edit)
		nettest.Eventually(t, tt.name+" to be mended", func() bool { return e.sound.Load() != was && e.Intact() })
		is(tt.name, tt.want)
	}
	k.must(k.release(h))
	is("released")
}

// upToDate reports whether Keeper has heard of the last transaction, and knows that the table is right since.
func upToDate(k kind, e *Keeper) bool {
	last, err := e.tables.Generation()
	k.must(err)
	return e.touched.Load() == uint32(last) && e.sound.Load() == uint32(last)
}

// Run does not write a table that was gone, but is there again when Run would mend it.
func TestMendedByOthers(t *testing.T) {
	at := nettest.Node(t)
	e := New(Options{Tables: nft.Open(at), Ruleset: ruleset()})
	p := &poor{tables: e.tables}
	e.tables = p
	drifts := make(chan error, 10)
	k, h := kind{t, e.Kind()}, newHold(instance)
	k.must(k.acquire(h))
	run(t, e, drifts)
	nettest.Eventually(t, "the table to be intact", e.Intact)
	locked(e, func() {
		change(t, at, (*nftables.Conn).FlushRuleset)
		nettest.Eventually(t, "that it is gone to be noticed", func() bool { return !e.Intact() })
		k.must(e.write(e.wanted(h.Owner, instance)))
	})
	nettest.Eventually(t, "the news of it all to be heard", func() bool { return upToDate(k, e) })
	e.mu.Lock()
	defer e.mu.Unlock()
	if p.written != 2 {
		t.Errorf("written %d times", p.written)
	}
	select {
	case drift := <-drifts:
		t.Errorf("drift: %v", drift)
	default:
	}
}
