package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/stamp"
)

// content is everything that a reader can see.
type content struct {
	Owners []hold.Owner
	Rests  []Rest
	Tombs  map[string]Tombstone
	Epoch  Epoch
}

func contentOf(l *Ledger) content {
	l.mu.RLock()
	defer l.mu.RUnlock()
	c := content{Tombs: map[string]Tombstone{}, Epoch: l.state.epoch, Rests: l.state.resting()}
	for _, t := range l.state.tombstones() {
		c.Tombs[t.Key] = t
	}
	sortRests(c.Rests)
	for _, id := range slices.Sorted(maps.Keys(l.state.owners)) {
		c.Owners = append(c.Owners, l.state.owners[id].owner)
	}
	return c
}

// model is what a ledger should be: plain maps, changed in place.
type model struct {
	owners map[hold.ID]hold.Owner
	rests  map[hold.Name]modelRest
	tombs  map[string]Tombstone
	epoch  Epoch
}

// modelRest is a rest in real time, with the wall clock's time at which the name was freed.
type modelRest struct {
	freed, until time.Time
	wall         time.Time
}

func (m model) clone() model {
	return model{maps.Clone(m.owners), maps.Clone(m.rests), maps.Clone(m.tombs), m.epoch}
}

// rebooted returns the model after the ledger is first opened in another boot.
func (m model) rebooted(c *clock) model {
	for n, r := range m.rests {
		r.freed = c.now.Add(min(0, r.wall.Sub(c.Wall())))
		r.until = r.freed.Add(rest)
		m.rests[n] = r
	}
	m.epoch, m.tombs = Epoch{Boot: c.boot}, map[string]Tombstone{}
	return m
}

// content returns what a ledger must have. ahead is how far the ledger's clock is ahead of real
// time: as far as the wall clock was set forward when the ledger was opened.
func (m model) content(ahead time.Duration) content {
	c := content{Tombs: m.tombs, Epoch: m.epoch}
	for n, r := range m.rests {
		c.Rests = append(c.Rests, Rest{n, r.freed.Add(ahead), r.until.Add(ahead)})
	}
	sortRests(c.Rests)
	for _, id := range slices.Sorted(maps.Keys(m.owners)) {
		c.Owners = append(c.Owners, m.owners[id])
	}
	return c
}

var errTaken = errors.New("name taken")

func (m model) claim(names []hold.Name, but hold.ID, now time.Time) error {
	for _, n := range names {
		for id, o := range m.owners {
			if id != but && slices.Contains(o.Names, n) {
				return errTaken
			}
		}
		if r, ok := m.rests[n]; ok && now.Before(r.until) {
			return errTaken
		}
		delete(m.rests, n)
	}
	return nil
}

func (m model) free(names []hold.Name, at time.Time, c *clock) {
	for _, n := range names {
		if d := restAddresses(n); d > 0 {
			m.rests[n] = modelRest{at, at.Add(d), at.Add(c.step)}
		}
	}
}

// walk does random ops on a ledger and on its model.
type walk struct {
	*rand.Rand
	clock *clock
	ahead time.Duration // how far the ledger's clock is ahead of real time
	ids   []hold.ID
	names []hold.Name
}

func pick[T any](w *walk, from []T) T { return from[w.IntN(len(from))] }

// someNames returns up to three names; now and then it returns one twice.
func (w *walk) someNames() []hold.Name {
	var names []hold.Name
	for range w.IntN(4) {
		names = append(names, pick(w, w.names))
	}
	if w.IntN(10) > 0 {
		slices.SortFunc(names, compareNames)
		names = slices.Compact(names)
	}
	return names
}

// op returns a random op, and a function that does the same to the model.
func (w *walk) op() (Op, func(model) error) {
	id, now := pick(w, w.ids), w.clock.now
	at := now.Add(-time.Duration(w.IntN(40)) * time.Second)
	said := at.Add(w.ahead)
	switch w.IntN(12) {
	case 10:
		to, n := pick(w, w.ids), pick(w, w.names)
		return Pass(id, to, n), func(m model) error { return m.pass(id, to, n) }
	case 11:
		needs := w.needs()
		return Update(id, func(o *hold.Owner) error { o.Needs = needs; return nil }),
			func(m model) error { return m.need(id, needs) }
	case 0, 1, 2, 3:
		o := newOwner(w.someNames()...)
		o.ID, o.Meta = id, json.RawMessage(`{"pod":"web-0"}`)
		for i := range o.Holds {
			o.Holds[i].Owner = id
		}
		if w.IntN(4) == 0 {
			o.Needs = w.needs()
		}
		return Begin(o), func(m model) error { return m.begin(o, now) }
	case 4:
		names := w.someNames()
		return Update(id, func(o *hold.Owner) error { o.Names = slices.Clone(names); return nil }),
			func(m model) error { return m.update(id, names, w.clock) }
	case 5, 6:
		op, earlier := Releasing(id, at), (*hold.Earlier)(nil)
		if w.IntN(2) == 0 {
			earlier = &hold.Earlier{Asked: at.Add(-time.Minute)}
			if w.IntN(2) == 0 {
				earlier.Cut = at.Add(-time.Second)
			}
			op = ReleasingAfter(id, at, *earlier)
		}
		return op, func(m model) error {
			o, ok := m.owners[id]
			if !ok {
				return ErrUnknown
			}
			if o.Wanted() {
				o.Releasing, o.Earlier = at, earlier
				m.owners[id] = o
			}
			return nil
		}
	case 7, 8:
		op, unused := Forget(id, said), w.IntN(3) == 0
		if unused {
			op = ForgetUnused(id)
		}
		return op, func(m model) error {
			for _, o := range m.owners {
				if slices.Contains(o.Needs, id) {
					return ErrNeeded
				}
			}
			if !unused {
				m.free(m.owners[id].Names, at, w.clock)
			}
			delete(m.owners, id)
			return nil
		}
	default:
		t := Tombstone{string(id), w.clock.boot, w.Int64N(5), w.Int64N(5)}
		return Bury(t), func(m model) error {
			old := m.tombs[t.Key]
			m.tombs[t.Key] = Tombstone{t.Key, t.Boot, max(t.Started, old.Started), max(t.Until, old.Until)}
			return nil
		}
	}
}

// needs returns some owners, mostly each only once.
func (w *walk) needs() []hold.ID {
	ids := make([]hold.ID, 1+w.IntN(2))
	for i := range ids {
		ids[i] = pick(w, w.ids)
	}
	return ids
}

func (m model) mayNeed(ids []hold.ID, leaving bool) error {
	for _, id := range ids {
		if o, ok := m.owners[id]; !ok || !o.Wanted() && !leaving {
			return ErrNeeds
		}
	}
	return nil
}

// need lets an owner need others from now on. Owners that it needed already may be releasing.
func (m model) need(id hold.ID, needs []hold.ID) error {
	o, ok := m.owners[id]
	if !ok {
		return ErrUnknown
	}
	if len(needs) == 2 && needs[0] == needs[1] {
		return ErrInvalid
	}
	if err := m.mayNeed(slices.DeleteFunc(slices.Clone(needs), func(n hold.ID) bool { return slices.Contains(o.Needs, n) }), !o.Wanted()); err != nil {
		return err
	}
	o.Needs = needs
	m.owners[id] = o
	var above func(hold.ID, int) bool
	above = func(at hold.ID, depth int) bool {
		return depth > 0 && slices.ContainsFunc(m.owners[at].Needs, func(n hold.ID) bool { return n == id || above(n, depth-1) })
	}
	if above(id, len(m.owners)) {
		return ErrInvalid
	}
	return nil
}

func (m model) pass(from, to hold.ID, n hold.Name) error {
	if from == to {
		return ErrInvalid
	}
	a, ok := m.owners[from]
	b, also := m.owners[to]
	switch {
	case !ok:
		return ErrUnknown
	case !slices.Contains(a.Names, n):
		return ErrInvalid
	case !also:
		return ErrUnknown
	}
	a.Names = slices.DeleteFunc(slices.Clone(a.Names), func(m hold.Name) bool { return m == n })
	if len(a.Names) == 0 {
		a.Names = nil
	}
	b.Names = append(slices.Clone(b.Names), n)
	m.owners[from], m.owners[to] = a, b
	return nil
}

func (m model) begin(o hold.Owner, now time.Time) error {
	if len(o.Names) > 1 && len(slices.Compact(slices.Clone(o.Names))) < len(o.Names) ||
		len(o.Names) == 3 && o.Names[0] == o.Names[2] || len(o.Needs) == 2 && o.Needs[0] == o.Needs[1] {
		return ErrInvalid
	}
	if _, ok := m.owners[o.ID]; ok {
		return ErrExists
	}
	if err := m.mayNeed(o.Needs, false); err != nil {
		return err
	}
	m.owners[o.ID] = o
	return m.claim(o.Names, o.ID, now)
}

func (m model) update(id hold.ID, names []hold.Name, c *clock) error {
	o, ok := m.owners[id]
	if !ok {
		return ErrUnknown
	}
	for i, n := range names {
		if slices.Contains(names[:i], n) {
			return ErrInvalid
		}
	}
	var gone []hold.Name
	for _, n := range o.Names {
		if !slices.Contains(names, n) {
			gone = append(gone, n)
		}
	}
	var come []hold.Name
	for _, n := range names {
		if !slices.Contains(o.Names, n) {
			come = append(come, n)
		}
	}
	if o.Names = names; len(names) == 0 {
		o.Names = nil
	}
	m.owners[id] = o
	m.free(gone, c.now, c)
	return m.claim(come, id, c.now)
}

// around steps the wall clock forward or back, or has the ledger opened again in the same
// boot or in another one. It does one to three of these, because rests are most likely wrong
// after a combination. It reports whether the caller has to open the ledger again.
func (w *walk) around() (again bool) {
	for range 1 + w.IntN(3) {
		switch w.IntN(8) {
		case 0, 1, 2:
			by := []time.Duration{5 * time.Second, time.Minute, 24 * time.Hour}[w.IntN(3)]
			w.clock.step += by * time.Duration(1-2*w.IntN(2))
		case 3:
			w.clock.reboot()
			again = true
		case 4, 5, 6:
			again = true
		}
	}
	return again
}

// TestModel compares long random sequences of commits with a model, with the
// ledger closed and opened, the wall clock stepped, and the machine rebooted at
// random.
func TestModel(t *testing.T) {
	w := &walk{Rand: rand.New(rand.NewPCG(uint64(newSeed(t)), 0)), clock: newClock()}
	for i := range 12 {
		w.ids = append(w.ids, hold.ID(strings.Repeat(string(rune('a'+i)), stamp.IDLen)))
	}
	for i := range 6 {
		w.names = append(w.names, address(fmt.Sprint(i)), hold.Name{Space: "port", Name: fmt.Sprint(i)})
	}
	path := filepath.Join(t.TempDir(), "ledger.db")
	options := func() Options { // the file is written anew again and again
		opts := testOptions(path, w.clock)
		opts.minLog = 8 << 10
		return opts
	}
	l := open(t, options())
	rewrites := uint64(0)
	m := model{map[hold.ID]hold.Owner{}, map[hold.Name]modelRest{}, map[string]Tombstone{}, Epoch{Boot: w.clock.boot}}
	must(t, l.SetEpoch(m.epoch))
	commits := 4000
	if testing.Short() {
		commits = 400
	}
	outcomes := map[error]int{}
	// missing is what has not happened yet: a walk goes on until all of it has, and at most to its last commit.
	missing := func() (names []string) {
		if rewrites == 0 {
			names = append(names, "the file written anew")
		}
		for _, kind := range []error{nil, ErrInvalid, ErrExists, ErrUnknown, ErrNeeds, ErrNeeded, errTaken} {
			if outcomes[kind] == 0 {
				names = append(names, fmt.Sprintf("a commit that comes out as %v", kind))
			}
		}
		return names
	}
	const last = 100_000
	for i := 0; i < commits || len(missing()) > 0 && i < last; i++ {
		w.clock.now = w.clock.now.Add(time.Duration(w.IntN(10)) * time.Second)
		next := m.clone()
		var ops []Op
		var want error
		for range 1 + w.IntN(3) {
			op, do := w.op()
			ops = append(ops, op)
			if want == nil {
				want = do(next)
			}
		}
		// Errors that need nothing of the ledger's state come first.
		for _, op := range ops {
			if _, err := op.ready(l); err != nil {
				want = ErrInvalid
			}
		}
		err := l.Commit(context.Background(), ops...)
		if taken := (*NameTakenError)(nil); errors.As(err, &taken) {
			err = errTaken
		}
		if !errors.Is(err, want) {
			t.Fatalf("commit %d of %v: %v, want %v", i, ops, err, want)
		}
		outcomes[want]++
		if want == nil {
			m = next
		}
		if w.IntN(30) == 0 && w.around() {
			rewrites += l.Stats().Rewrites
			must(t, l.Close())
			l = open(t, options())
			if w.ahead = w.clock.step; w.clock.boot != m.epoch.Boot {
				m = m.rebooted(w.clock)
				must(t, l.SetEpoch(m.epoch)) // as an agent does
			}
		}
		if want != nil || w.IntN(4) == 0 {
			sameContent(t, contentOf(l), m.content(w.ahead))
			checkIndexes(t, l, m)
		}
	}
	t.Log(outcomes, rewrites)
	if m := missing(); len(m) > 0 {
		t.Errorf("%d commits, and never %s", last, strings.Join(m, ", "))
	}
}

// TestChurn lets a ledger grow and shrink again, and its file be written anew meanwhile. Now
// and then it opens the file again.
func TestChurn(t *testing.T) {
	random := rand.New(rand.NewPCG(uint64(newSeed(t)), 0))
	c := newClock()
	opts := testOptions(filepath.Join(t.TempDir(), "ledger.db"), c)
	opts.minLog = 64 << 10
	l := open(t, opts)
	var ids []hold.ID
	for round := range 120 {
		grow := round < 60
		var ops []Op
		for range 100 {
			if n := len(ids); n > 0 && (random.IntN(4) == 0) == grow {
				i := random.IntN(n)
				if random.IntN(3) == 0 {
					i = min(n-1, random.IntN(40))
				}
				ops = append(ops, Forget(ids[i], c.now))
				ids = slices.Delete(ids, i, i+1)
				continue
			}
			o := fullOwner(0)
			o.Names = []hold.Name{address(string(o.ID))}
			at, _ := slices.BinarySearch(ids, o.ID)
			ids = slices.Insert(ids, at, o.ID)
			ops = append(ops, Begin(o))
		}
		mustCommit(t, l, ops...)
		if round%6 < 5 {
			continue
		}
		want := contentOf(l)
		must(t, l.Close())
		l = open(t, opts)
		sameContent(t, contentOf(l), want)
		if len(want.Owners) != len(ids) {
			t.Fatalf("%d owners, want %d", len(want.Owners), len(ids))
		}
	}
}

// checkIndexes compares the names and needers that the ledger keeps with its owners.
func checkIndexes(t *testing.T, l *Ledger, m model) {
	t.Helper()
	names, needers := 0, map[hold.ID][]hold.ID{}
	for id, o := range m.owners {
		for _, n := range o.Names {
			names++
			if holder, ok := l.Holder(n); !ok || holder != id {
				t.Fatalf("holder of %s is %q, want %s", n, holder, id)
			}
		}
		for _, need := range o.Needs {
			needers[need] = append(needers[need], id)
		}
	}
	if s := l.Stats(); s.Names != names || s.Owners != len(m.owners) || s.Resting != len(m.rests) {
		t.Fatalf("stats %+v, want %d names, %d owners, %d rests", s, names, len(m.owners), len(m.rests))
	}
	for id := range m.owners {
		have := l.Needers(id)
		slices.Sort(have)
		slices.Sort(needers[id])
		if !slices.Equal(have, needers[id]) {
			t.Fatalf("%s is needed by %v, want %v", id, have, needers[id])
		}
	}
}
