package ledger

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/hold"
)

// gate lets a test hold the writer between a transaction and its answer.
type gate struct{ entered, leave chan Change }

func newGate() *gate { return &gate{make(chan Change), make(chan Change)} }

func (g *gate) applied(c Change) {
	g.entered <- c
	<-g.leave
}

// commitAsync commits in the background and returns a channel with the answer.
func commitAsync(ctx context.Context, l *Ledger, ops ...Op) chan error {
	answer := make(chan error, 1)
	go func() { answer <- l.Commit(ctx, ops...) }()
	return answer
}

// waitQueued waits until n commits are in the queue.
func waitQueued(l *Ledger, n int) {
	for {
		l.queue.mu.Lock()
		have := len(l.queue.list)
		l.queue.mu.Unlock()
		if have >= n {
			return
		}
		runtime.Gosched()
	}
}

// gated opens a ledger whose transactions wait at a gate.
func gated(t *testing.T) (*gate, *Ledger, Options) {
	t.Helper()
	g := newGate()
	opts := testOptions(filepath.Join(t.TempDir(), "ledger.db"), newClock())
	opts.Applied = g.applied
	return g, open(t, opts), opts
}

// Commits that wait while a transaction is written are the next transaction, and a commit
// that is refused in it does not harm the others (aws, from source: each change wrote and
// fsynced the whole checkpoint, under the lock).
func TestGroupCommit(t *testing.T) {
	g, l, _ := gated(t)

	first := commitAsync(t.Context(), l, Begin(newOwner()))
	<-g.entered
	const n = 50
	answers := make([]chan error, n)
	for i := range answers { // all want the same port
		answers[i] = commitAsync(t.Context(), l, Begin(newOwner()), Begin(newOwner(hold.Name{Space: "port", Name: "80"})))
		waitQueued(l, i+1)
	}
	g.leave <- Change{}
	must(t, <-first)
	change := <-g.entered
	if len(change.Owners) != 2 {
		t.Errorf("%d edits, want those of the one who got the port", len(change.Owners))
	}
	for i, answer := range answers[1:] {
		var taken *NameTakenError
		if err := <-answer; !errors.As(err, &taken) || taken.Owner != change.Owners[1].After.ID {
			t.Errorf("commit %d: %v, want the name to be taken by the first", i+1, err)
		}
	}
	g.leave <- Change{}
	if err := <-answers[0]; err != nil {
		t.Errorf("the first that waited: %v", err)
	}
	if s := l.Stats(); s.Transactions != 2 || s.Commits != 2 || s.Refused != n-1 || s.Ops != 3 || s.Owners != 3 {
		t.Errorf("stats %+v", s)
	}
}

// If a commit is refused at its last op, nothing of it reaches the next commit in the same
// transaction, readers, or the file.
func TestRefusedLeavesNoTrace(t *testing.T) {
	g := newGate()
	c := newClock()
	opts := testOptions(filepath.Join(t.TempDir(), "ledger.db"), c)
	opts.Applied = g.applied
	l := open(t, opts)
	commit := func(ops ...Op) chan error { return commitAsync(t.Context(), l, ops...) }
	parent, leaving, due := newOwner(address("parent")), newOwner(address("leaving")), newOwner(address("due"))
	first := commit(Begin(parent), Begin(leaving), Begin(due), Forget(due.ID, c.now.Add(-rest)))
	<-g.entered
	kid, kid2, heir := newOwner(address("new"), address("due")), newOwner(), newOwner(address("new"), address("due"))
	kid.Needs, kid2.Needs = []hold.ID{parent.ID}, []hold.ID{parent.ID}
	refused := commit(Begin(kid), Begin(kid2), Forget(leaving.ID, c.now), Releasing(parent.ID, c.now),
		Bury(Tombstone{Key: "k", Boot: "b", Started: 5}), setEpoch{Epoch{Boot: "b"}}, Begin(parent))
	waitQueued(l, 1)
	next := commit(Begin(heir), Unburied("k", "b", 1), Releasing(leaving.ID, c.now), Forget(parent.ID, c.now.Add(-rest)),
		Begin(newOwner(address("parent"))))
	waitQueued(l, 2)
	g.leave <- Change{}
	change := <-g.entered
	g.leave <- Change{}
	if err := <-first; err != nil {
		t.Error(err)
	}
	if err := <-refused; !errors.Is(err, ErrExists) {
		t.Errorf("the first: %v, want it refused", err)
	}
	if err := <-next; err != nil {
		t.Errorf("the next: %v", err)
	}
	if len(change.Owners) != 4 || change.Owners[0].After.ID != heir.ID || len(change.Rested) != 0 {
		t.Errorf("readers are told of %+v", change)
	}
	if l.Epoch() != (Epoch{}) || len(l.Needers(parent.ID)) != 0 || l.Stats().Tombstones != 0 {
		t.Errorf("left: epoch %+v, needers %v, %+v", l.Epoch(), l.Needers(parent.ID), l.Stats())
	}
	want := contentOf(l)
	l.Close()
	opts.Applied = nil
	sameContent(t, contentOf(open(t, opts)), want)
}

// Applied shows an owner that is begun and releasing in one commit in a single edit. It shows
// a name that is freed in between in an edit of its own.
func TestNeverWanted(t *testing.T) {
	var changes []Change
	opts := testOptions(filepath.Join(t.TempDir(), "ledger.db"), newClock())
	opts.Applied = func(c Change) { changes = append(changes, c) }
	l := open(t, opts)
	o := newOwner(hold.Name{Space: "port", Name: "80"})
	must(t, l.Commit(t.Context(), Begin(o), Releasing(o.ID, time.Now())))
	must(t, l.Commit(t.Context(), Update(o.ID, func(o *hold.Owner) error { o.Names = nil; return nil }), Forget(o.ID, time.Now())))
	if len(changes) != 2 || len(changes[0].Owners) != 1 || changes[0].Owners[0].Before != nil || changes[0].Owners[0].After.Wanted() {
		t.Fatalf("changes: %+v", changes)
	}
	if freed := changes[1].Owners; len(freed) != 2 || len(freed[0].Before.Names) != 1 || len(freed[0].After.Names) != 0 || freed[1].After != nil {
		t.Errorf("edits: %+v", freed)
	}
}

// Many commits that wait share one transaction.
func TestOneBatch(t *testing.T) {
	g, l, _ := gated(t)
	first := commitAsync(t.Context(), l, Begin(newOwner()))
	<-g.entered
	const n = 100
	var answers []chan error
	for range n {
		answers = append(answers, commitAsync(t.Context(), l, Begin(newOwner())))
	}
	waitQueued(l, n)
	g.leave <- Change{}
	if change := <-g.entered; len(change.Owners) != n {
		t.Errorf("%d edits in a transaction, want %d", len(change.Owners), n)
	}
	g.leave <- Change{}
	for _, answer := range append(answers, first) {
		if err := <-answer; err != nil {
			t.Error(err)
		}
	}
	if s := l.Stats(); s.Transactions != 2 || s.Batches[0] != 1 || s.Batches[7] != 1 {
		t.Errorf("stats %+v", s)
	}
}

// A caller that gives up before a transaction has its ops withdraws them. A caller that gives up
// later waits for the outcome.
func TestGiveUp(t *testing.T) {
	g, l, _ := gated(t)

	ctx, cancel := context.WithCancel(t.Context())
	in := newOwner()
	inBatch := commitAsync(ctx, l, Begin(in))
	<-g.entered
	out := newOwner()
	waits := commitAsync(ctx, l, Begin(out))
	waitQueued(l, 1)
	cancel()
	if err := <-waits; !errors.Is(err, context.Canceled) {
		t.Errorf("commit that waited: %v", err)
	}
	select {
	case err := <-inBatch:
		t.Fatalf("commit in the transaction answered too soon: %v", err)
	default:
	}
	if _, ok := l.Owner(in.ID); !ok {
		t.Error("readers do not see what is durable")
	}
	g.leave <- Change{}
	if err := <-inBatch; err != nil {
		t.Errorf("commit in the transaction: %v", err)
	}
	if err := l.Commit(ctx, Begin(out)); !errors.Is(err, context.Canceled) {
		t.Errorf("commit with an ended context: %v", err)
	}
	last := commitAsync(t.Context(), l, Forget(in.ID, newClock().now))
	<-g.entered
	g.leave <- Change{}
	must(t, <-last)
	if _, ok := l.Owner(out.ID); ok || l.Stats().Transactions != 2 {
		t.Errorf("what was withdrawn was written: %v, %+v", ok, l.Stats())
	}
}

// Close waits for the transaction that is being written, and refuses the other commits.
func TestCloseWaiting(t *testing.T) {
	g, l, opts := gated(t)
	in := newOwner()
	inBatch := commitAsync(t.Context(), l, Begin(in))
	<-g.entered
	waits := commitAsync(t.Context(), l, Begin(newOwner()))
	waitQueued(l, 1)
	closed := make(chan error, 1)
	go func() { closed <- l.Close() }()
	g.leave <- Change{}
	// Close and the writer race for the commit that waits: it is either written or refused,
	// and its answer says which.
	wrote := 1
	select {
	case <-g.entered:
		wrote = 2
		g.leave <- Change{}
		if err := <-waits; err != nil {
			t.Error(err)
		}
	case err := <-waits:
		if !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	}
	if err := <-inBatch; err != nil {
		t.Error(err)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if err := l.Close(); err != nil {
		t.Errorf("closing again: %v", err)
	}
	opts.Applied = nil
	if n := len(open(t, opts).Owners()); n != wrote {
		t.Errorf("%d owners, want %d", n, wrote)
	}
}

// A view that follows Applied knows what the ledger knows.
func TestChange(t *testing.T) {
	c := newClock()
	var changes []Change
	opts := testOptions(filepath.Join(t.TempDir(), "ledger.db"), c)
	opts.Applied = func(c Change) { changes = append(changes, c) }
	l := open(t, opts)
	last := func() Change { return changes[len(changes)-1] }

	a := newOwner(address("1"), hold.Name{Space: "port", Name: "80"})
	mustCommit(t, l, Begin(a))
	if got := last(); len(got.Owners) != 1 || got.Owners[0].Before != nil || got.Owners[0].After.ID != a.ID || got.Rested != nil || got.Woken != nil {
		t.Errorf("begin: %+v", got)
	}
	mustCommit(t, l, Releasing(a.ID, c.now))
	if got := last(); len(got.Owners) != 1 || !got.Owners[0].Before.Wanted() || got.Owners[0].After.Wanted() {
		t.Errorf("releasing: %+v", got)
	}
	mustCommit(t, l, Releasing(a.ID, c.now), Forget("unknownaaa", c.now), Unburied("k", "", 1))
	if len(changes) != 2 {
		t.Errorf("nothing was changed, and that was said: %+v", last())
	}
	mustCommit(t, l, Forget(a.ID, c.now))
	rested := Rest{address("1"), c.now, c.now.Add(rest)}
	if got := last(); len(got.Owners) != 1 || got.Owners[0].After != nil || !reflect.DeepEqual(got.Rested, []Rest{rested}) {
		t.Errorf("forget: %+v", got)
	}
	c.now = c.now.Add(rest)
	b := newOwner(address("1"))
	mustCommit(t, l, Begin(b))
	if got := last(); !reflect.DeepEqual(got.Woken, []hold.Name{address("1")}) || got.Rested != nil {
		t.Errorf("begin with a name that has rested: %+v", got)
	}
	mustCommit(t, l, Update(b.ID, func(o *hold.Owner) error { o.Names = nil; return nil }))
	if got := last(); len(got.Rested) != 1 || !got.Rested[0].Freed.Equal(c.now) || len(got.Owners[0].After.Names) != 0 {
		t.Errorf("update that drops a name: %+v", got)
	}
	// A name that is freed into a rest that is over, and claimed, in one transaction is
	// neither in Rested nor in Woken.
	d, e := newOwner(address("2")), newOwner(address("2"))
	mustCommit(t, l, Begin(d), Forget(d.ID, c.now.Add(-rest)), Begin(e))
	if got := last(); len(got.Owners) != 3 || got.Owners[2].After.ID != e.ID || got.Rested != nil || got.Woken != nil {
		t.Errorf("handed on in a commit: %+v", got)
	}
}

// A caller cannot change the ledger through the values that it has passed.
func TestOwned(t *testing.T) {
	l := open(t, testOptions(filepath.Join(t.TempDir(), "ledger.db"), newClock()))
	o := newOwner(address("1"))
	mustCommit(t, l, Begin(o))
	before := contentOf(l)
	o.Names[0].Name = "changed"
	o.Meta[2] = 'X'
	o.Holds[0] = hold.Hold{}
	o.Holds[1].Spec.(*flexible).Found = "by Acquire, before its commit"
	got, _ := l.Owner(o.ID)
	got.Names[0].Name = "changed"
	got.Holds[0] = hold.Hold{}
	all := l.Owners()
	all[0].Names[0].Name = "changed"
	if err := l.Commit(t.Context(), Update(o.ID, func(o *hold.Owner) error {
		o.Holds[1].Spec.(*flexible).Found = "in an update that fails"
		return errChange
	})); !errors.Is(err, errChange) {
		t.Fatal(err)
	}
	again := open(t, testOptions(copyOf(t, l), newClock()))
	sameContent(t, contentOf(again), before)
	sameContent(t, contentOf(l), contentOf(again))
}

// TestAtOnce has many callers begin, release and forget for the same few names
// while others read. Run with -race.
func TestAtOnce(t *testing.T) {
	c := newClock()
	var mu sync.Mutex
	held := map[hold.Name]hold.ID{} // a view, as IPAM is one
	opts := testOptions(filepath.Join(t.TempDir(), "ledger.db"), c)
	opts.Rest = nil
	opts.Applied = func(c Change) {
		mu.Lock()
		defer mu.Unlock()
		for _, e := range c.Owners {
			if e.Before != nil {
				for _, n := range e.Before.Names {
					delete(held, n)
				}
			}
			if e.After == nil {
				continue
			}
			for _, n := range e.After.Names {
				if other, ok := held[n]; ok {
					t.Errorf("name %s given to %s and %s", n, other, e.After.ID)
				}
				held[n] = e.After.ID
			}
		}
	}
	l := open(t, opts)
	var wg sync.WaitGroup
	for w := range 16 {
		wg.Go(func() {
			for i := range 40 {
				n := address(fmt.Sprint(i % 5))
				o := newOwner(n)
				err := l.Commit(t.Context(), Begin(o))
				var taken *NameTakenError
				if errors.As(err, &taken) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				if id, ok := l.Holder(n); !ok || id != o.ID {
					t.Errorf("holder of %s is %s, want %s", n, id, o.ID)
				}
				if w%2 == 0 {
					l.Owners()
					l.Resting()
					l.Stats()
					l.Needers(o.ID)
				}
				if err := l.Commit(t.Context(), Releasing(o.ID, c.now), Bury(Tombstone{Key: n.Name, Started: int64(i)})); err != nil {
					t.Error(err)
				}
				if err := l.Commit(t.Context(), Forget(o.ID, c.now)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := len(l.Owners()); n != 0 || len(held) != 0 {
		t.Errorf("%d owners, %d names left", n, len(held))
	}
}

// A transaction is one sync, except for a transaction that makes room for many others.
func TestOneSync(t *testing.T) {
	opts := testOptions(filepath.Join(t.TempDir(), "ledger.db"), newClock())
	grown, appended := atomic.Int64{}, atomic.Int64{}
	opts.volume = &hooked{
		syncs: func(string) { grown.Add(1) },
		datas: func(string) { appended.Add(1) },
	}
	l := open(t, opts)
	for i := range 500 {
		mustCommit(t, l, Begin(fullOwner(i)))
	}
	rewriteNow(t, l)
	before := l.Stats()
	grown.Store(0)
	appended.Store(0)
	for i := range 500 {
		mustCommit(t, l, Begin(fullOwner(500+i)))
	}
	now := l.Stats()
	if tx := int64(now.Transactions - before.Transactions); tx != 500 || appended.Load() != tx || grown.Load() > tx/20 {
		t.Errorf("%d transactions, %d syncs of data, %d others", tx, appended.Load(), grown.Load())
	}
}
