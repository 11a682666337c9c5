package ledger

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/nettest"
)

// disk is a small file system for a test.
type disk struct {
	t   *testing.T
	dir string
}

// newDisk mounts a tmpfs. bytes is its size in the words of mount(8), such as "16m".
func newDisk(t *testing.T, bytes string) *disk {
	nettest.Need(t)
	d := &disk{t, t.TempDir()}
	nettest.Mount(t, d.dir, "size="+bytes)
	return d
}

func (d *disk) ledger() string { return filepath.Join(d.dir, "ledger.db") }

// fill uses up the rest of the disk.
func (d *disk) fill() {
	d.t.Helper()
	nettest.Fill(d.t, d.dir)
}

// mustBeFull fails the test if the disk still has room.
func (d *disk) mustBeFull() {
	d.t.Helper()
	var s unix.Statfs_t
	must(d.t, unix.Statfs(d.dir, &s))
	if s.Bavail != 0 {
		d.t.Fatalf("the disk has %d free blocks", s.Bavail)
	}
}

func (d *disk) size(name string) int64 {
	d.t.Helper()
	info, err := os.Stat(filepath.Join(d.dir, name))
	must(d.t, err)
	return info.Size()
}

func (d *disk) free() {
	d.t.Helper()
	must(d.t, os.Remove(filepath.Join(d.dir, "filler")))
}

// beginUntilFull begins owners until they are refused.
func beginUntilFull(t *testing.T, l *Ledger, from int) {
	t.Helper()
	for i := range 20000 {
		err := l.Commit(t.Context(), Begin(fullOwner(from+i)))
		if errors.Is(err, ErrFull) {
			if !strings.HasPrefix(errors.Unwrap(err).Error(), "disk full: ") || !errors.Is(err, unix.ENOSPC) {
				t.Errorf("the error does not explain itself: %v", err)
			}
			t.Logf("%d more owners, then: %v", i, err)
			return
		}
		must(t, err)
	}
	t.Fatal("owners are still begun on a full disk")
}

// A full disk stops ADD first and DEL last, and both work again when there is room again.
func TestFullDisk(t *testing.T) {
	for _, group := range []int{1, 250} {
		d := newDisk(t, "48m")
		c := newClock()
		opts := testOptions(d.ledger(), c)
		l := open(t, opts)
		const owners = 3000
		for i := 0; i < owners; i += 250 {
			var ops []Op
			for j := range 250 {
				ops = append(ops, Begin(fullOwner(i+j)))
			}
			mustCommit(t, l, ops...)
		}
		waitIdle(t, l)
		d.fill()
		beginUntilFull(t, l, owners)
		all := l.Owners()
		first := all[0].ID
		if err := l.Writable(); !errors.Is(err, ErrFull) {
			t.Errorf("writable: %v", err)
		}
		if s := l.Stats(); s.Free < s.Reserve/2 {
			t.Errorf("hardly any reserve: %+v", s)
		}
		var grown error // an owner needs more room than an update
		for i := 0; i < 100 && grown == nil; i++ {
			grown = l.Commit(t.Context(), Update(first, func(o *hold.Owner) error {
				o.Holds = append(slices.Clone(o.Holds), o.Holds[0])
				return nil
			}))
		}
		if !errors.Is(grown, ErrFull) {
			t.Errorf("an update that adds: %v", grown)
		}
		mustCommit(t, l, Update(first, func(o *hold.Owner) error { o.Names = o.Names[:1]; return nil }))
		if err := l.SetEpoch(Epoch{Boot: "b"}); err != nil {
			t.Errorf("setting the epoch: %v", err)
		}

		var releases, forgets []Op
		for _, o := range all {
			releases = append(releases, Releasing(o.ID, c.now), Bury(Tombstone{string(o.ID), "b", 1, c.Boottime() + int64(time.Hour)}))
			forgets = append(forgets, Forget(o.ID, c.now))
		}
		for ops := range slices.Chunk(append(releases, forgets...), group) {
			if err := l.Commit(t.Context(), ops...); err != nil {
				t.Fatalf("a deletion: %v (%+v)", err, l.Stats())
			}
		}
		d.mustBeFull()
		want := contentOf(l)
		if len(want.Owners) != 0 || len(want.Rests) < 2*owners || len(want.Tombs) < owners {
			t.Fatalf("%d owners, %d rests, %d tombstones", len(want.Owners), len(want.Rests), len(want.Tombs))
		}
		must(t, l.Close())
		l = open(t, opts)
		sameContent(t, contentOf(l), want)
		d.mustBeFull()

		d.free()
		mustCommit(t, l, Begin(newOwner()))
		if err := l.Writable(); err != nil {
			t.Errorf("writable again: %v", err)
		}
		l.Close()
	}
}

// untilFull commits what op returns until the ledger refuses a commit because the disk is full. It
// returns how many commits the ledger took before.
func untilFull(t *testing.T, l *Ledger, op func(i int) []Op) int {
	t.Helper()
	for i := range 100000 {
		err := l.Commit(t.Context(), op(i)...)
		if errors.Is(err, ErrFull) {
			return i
		}
		must(t, err)
	}
	t.Fatal("it is never refused")
	return 0
}

// asked returns an update as a repeated ADD makes it: the owner's record keeps its length.
func asked(id hold.ID, i int) []Op {
	return []Op{Update(id, func(o *hold.Owner) error {
		o.Meta = json.RawMessage(fmt.Sprintf(`{"started":"%020d"%s`, i, o.Meta[len(`{"started":"00000000000000000000"`):]))
		return nil
	})}
}

// whole returns the ops of an owner's deletion: the promise, with a tombstone whose key has `key`
// bytes, and the end.
func whole(o hold.Owner, c *clock, key int) (promise, end []Op) {
	t := Tombstone{(string(o.ID) + strings.Repeat("k", key))[:key], "2f1a4c3e-5b6d-4e7f-8a9b-0c1d2e3f4a5b", c.Boottime(), c.Boottime() + int64(time.Hour)}
	return []Op{ReleasingAfter(o.ID, c.now, hold.Earlier{Asked: c.now, Cut: c.now}), Bury(t)}, []Op{Forget(o.ID, c.now)}
}

// On a full disk ADDs are refused first, then repeated ADDs, then deletions of what nobody
// has. However many of these come, each owner can be released.
func TestFullDiskOrder(t *testing.T) {
	d := newDisk(t, "16m")
	c := newClock()
	opts := testOptions(d.ledger(), c)
	l := open(t, opts)
	for i := range 200 {
		o := fullOwner(i)
		o.Meta = json.RawMessage(`{"started":"00000000000000000000",` + string(o.Meta[1:]))
		if i%10 == 0 { // as much as its deletion may take
			o.Names = append(o.Names, address(fmt.Sprint(i, strings.Repeat("n", MaxName-20))), address(fmt.Sprint(i, strings.Repeat("m", MaxName-20))))
		}
		mustCommit(t, l, Begin(o))
	}
	waitIdle(t, l)
	d.fill()
	all := l.Owners()
	added := untilFull(t, l, func(i int) []Op { return []Op{Begin(fullOwner(1000 + i))} })
	changed := untilFull(t, l, func(i int) []Op { return asked(all[i%len(all)].ID, i) })
	if err := l.Commit(t.Context(), Begin(fullOwner(5000))); !errors.Is(err, ErrFull) {
		t.Errorf("a pod is attached: %v", err)
	}
	buried := untilFull(t, l, func(i int) []Op {
		return []Op{Bury(Tombstone{fmt.Sprintf("network/%064d/eth0", i), "boot", c.Boottime(), c.Boottime() + int64(time.Hour)})}
	})
	t.Logf("%d owners were added, then %d changed, then %d keys buried", added, changed, buried)
	if changed < baseReserve/2/4 || buried < baseReserve/2 {
		t.Error("too early")
	}
	for i := range 20 { // the node boots again, and the agent cannot but say so
		mustCommit(t, l, Enter(Epoch{Boot: fmt.Sprint("boot", i)}))
	}
	if err := l.Commit(t.Context(), asked(all[0].ID, 1)...); !errors.Is(err, ErrFull) {
		t.Errorf("a repeated ADD: %v", err)
	}
	for i, o := range l.Owners() {
		promise, end := whole(o, c, MaxName)
		mustCommit(t, l, promise...)
		if i%3 == 0 { // of the others, everything has been promised before anything ends
			mustCommit(t, l, end...)
		}
		if i == 100 {
			must(t, l.Close())
			l = open(t, opts)
		}
	}
	for _, o := range l.Owners() {
		_, end := whole(o, c, MaxName)
		mustCommit(t, l, end...)
	}
	d.mustBeFull()
	if s := l.Stats(); s.Rewrites > 0 || s.Owners > 0 {
		t.Errorf("%+v", s)
	}
}

// TestFullDiskAnyOrder lets random commits come on a full disk, in any order and alone or in
// groups, each of which the ledger may refuse, and then releases all that there is. The ledger
// may refuse no release.
func TestFullDiskAnyOrder(t *testing.T) {
	random := rand.New(rand.NewPCG(uint64(newSeed(t)), 0))
	rounds := 6
	if testing.Short() {
		rounds = 1
	}
	for range rounds {
		d := newDisk(t, "12m")
		c := newClock()
		opts := testOptions(d.ledger(), c)
		l := open(t, opts)
		next := 0
		begin := func() []Op {
			o := fullOwner(next)
			next++
			o.Meta = json.RawMessage(`{"started":"00000000000000000000","pad":"` + strings.Repeat("x", random.IntN(2000)) + `"}`)
			for range random.IntN(4) {
				next++
				o.Names = append(o.Names, address(fmt.Sprint(next, strings.Repeat("n", random.IntN(MaxName-20)))))
			}
			return []Op{Begin(o)}
		}
		for range 100 + random.IntN(300) {
			mustCommit(t, l, begin()...)
		}
		waitIdle(t, l)
		d.fill()
		refused, done := 0, 0
		for range 6000 {
			c.now = c.now.Add(time.Duration(random.IntN(100)) * time.Millisecond)
			var ops []Op
			all := slices.Collect(maps.Keys(l.state.owners)) // the writer rests
			id := func() hold.ID { return all[random.IntN(len(all))] }
			for range 1 + random.IntN(3)*random.IntN(2) {
				if len(all) == 0 {
					break
				}
				o, _ := l.Owner(id())
				promise, end := whole(o, c, 1+random.IntN(MaxName))
				switch random.IntN(12) {
				case 0, 1:
					ops = append(ops, begin()...)
				case 2, 3, 4:
					ops = append(ops, asked(o.ID, done)...)
				case 5, 6, 7:
					ops = append(ops, promise[1]) // of an owner that stays
				case 8:
					ops = append(ops, Update(o.ID, func(o *hold.Owner) error { o.Names = nil; return nil }))
				case 9:
					if random.IntN(10) == 0 {
						ops = append(ops, Enter(Epoch{Boot: fmt.Sprint(done)}))
					}
				case 10:
					if random.IntN(10) == 0 {
						ops = append(ops, promise...)
					}
				case 11:
					if !o.Wanted() {
						ops = append(ops, end...)
					}
				}
			}
			if random.IntN(500) == 0 {
				must(t, l.Close())
				l = open(t, opts)
			}
			err := l.Commit(t.Context(), ops...)
			if err != nil && !errors.Is(err, ErrFull) && !errors.Is(err, ErrUnknown) { // of one that the commit forgets
				t.Fatal(err)
			}
			if done++; errors.Is(err, ErrFull) {
				refused++
			}
			if random.IntN(100) == 0 {
				pruneNow(t, l)
			}
		}
		all := l.Owners()
		random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		for _, o := range all {
			promise, end := whole(o, c, MaxName)
			if random.IntN(2) == 0 {
				promise = promise[:1]
			}
			if o.Wanted() {
				mustCommit(t, l, promise...)
			}
			if random.IntN(2) == 0 {
				mustCommit(t, l, end...)
			}
		}
		for _, o := range l.Owners() {
			mustCommit(t, l, Forget(o.ID, c.now))
		}
		t.Logf("%d of %d commits were refused, and %d owners released", refused, done, len(all))
		if refused < 100 || len(all) < 10 {
			t.Error("too few to tell")
		}
		d.mustBeFull()
		l.Close()
	}
}

// While the file is written anew, owners may come. The new file must have the reserve of all of
// them when it gets the name: somebody else may take the rest of the disk at once.
func TestReserveOfNow(t *testing.T) {
	d := newDisk(t, "64m")
	opts := testOptions(d.ledger(), newClock())
	gate, reached := make(chan bool), make(chan bool)
	created := 0
	vol := &hooked{creates: func(string) {
		if created++; created == 2 { // the first one was the new ledger
			reached <- true
			<-gate
		}
	}}
	opts.volume, opts.minLog = vol, 1<<10
	l := open(t, opts)
	mustCommit(t, l, Begin(fullOwner(0)))
	var log []Op
	for range 20 {
		o := newOwner()
		log = append(log, Begin(o), Forget(o.ID, time.Unix(1, 0)))
	}
	mustCommit(t, l, log...)
	<-reached // the file is about to be written anew
	for i := range 1200 {
		o := newOwner(address(fmt.Sprint(i)))
		mustCommit(t, l, Begin(o))
	}
	var free, want int
	vol.renames = func(from string) error {
		if want > 0 {
			return nil
		}
		raw, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		free, want = (len(raw)-used(t, raw))/sectorSize-1, reserve(l.store.exits)
		return nil
	}
	gate <- true
	waitIdle(t, l)
	if l.Stats().Rewrites == 0 || free < want {
		t.Errorf("a file that got the name has %d sectors of zeros, its reserve is %d; %+v", free, want, l.Stats())
	}
}

// leave makes room for `bytes` bytes on a disk that is full.
func (d *disk) leave(bytes int64) {
	d.t.Helper()
	must(d.t, os.Truncate(filepath.Join(d.dir, "filler"), d.size("filler")-bytes))
}

// largeOwner has a record of about MaxOwner bytes.
func largeOwner() hold.Owner {
	o := newOwner(address(string(hold.NewID())))
	o.Meta = json.RawMessage(`"` + strings.Repeat("m", MaxOwner-1024) + `"`)
	return o
}

// staged stages one commit of a batch, in the writer.
func (b *batch) staged(ops ...Op) error {
	var steps []step
	for _, op := range ops {
		s, err := op.ready(b.ledger)
		if err != nil {
			return err
		}
		steps = append(steps, s)
	}
	return b.stage(steps)
}

// A commit may find, within a transaction, that the file has too little room. Then the new file
// takes over. The new file must have room for the commits that the transaction has by then.
func TestRoomOfStaged(t *testing.T) {
	d := newDisk(t, "24m")
	opts := testOptions(d.ledger(), newClock())
	gate, reached := make(chan bool), make(chan bool)
	created := 0
	opts.volume = &hooked{creates: func(string) {
		if created++; created == 2 { // the first one was the new ledger
			reached <- true
			<-gate
		}
	}}
	l := open(t, opts)
	mustCommit(t, l, Begin(fullOwner(0)))
	mustCommit(t, l, inWriter(func(l *Ledger) error {
		l.store.opts.minLog, l.store.snap = 1, 0
		return l.store.enlarge(8000)
	}))
	<-reached // the file is about to be written anew
	d.fill()
	d.leave(int64(reserve(l.store.exits)+growBy/2) * sectorSize)
	mustCommit(t, l, inWriter(func(l *Ledger) error {
		gate <- true
		<-l.store.next.done
		b := l.newBatch()
		var fits, more []Op
		for range 8 {
			fits, more = append(fits, Begin(largeOwner())), append(more, Begin(largeOwner()))
		}
		if err := b.staged(fits...); err != nil {
			t.Error(err)
		}
		if err := b.staged(more...); !errors.Is(err, ErrFull) {
			t.Errorf("what the disk has no room for: %v", err)
		}
		if l.store.next != nil {
			t.Error("nobody has looked at the new file")
		}
		if need := sectors(b.bytes) + l.store.exits + b.exits; l.store.free() < need {
			t.Errorf("the file has %d sectors of zeros, what was accepted needs %d", l.store.free(), need)
		}
		return nil
	}))
}

// If a disk has no room for one commit of a transaction, the disk may have room for a smaller
// commit.
func TestSmallerFits(t *testing.T) {
	d := newDisk(t, "16m")
	l := open(t, testOptions(d.ledger(), newClock()))
	mustCommit(t, l, Begin(fullOwner(0)))
	waitIdle(t, l)
	d.fill()
	beginUntilFull(t, l, 1)
	mustCommit(t, l, inWriter(func(l *Ledger) error {
		d.leave(64 << 10)
		b := l.newBatch()
		for i, large := range []bool{true, false, true, false} {
			o := fullOwner(5000 + i)
			if large {
				o = largeOwner()
			}
			if err := b.staged(Begin(o)); errors.Is(err, ErrFull) != large {
				t.Errorf("commit %d, large %v: %v", i, large, err)
			}
		}
		return nil
	}))
}

// While a disk has too little room for a new file that could take over, the ledger writes none: it
// would write such a file in vain, again and again.
func TestNoRewriteInVain(t *testing.T) {
	d := newDisk(t, "24m")
	opts := testOptions(d.ledger(), newClock())
	wrote := atomic.Int32{}
	opts.volume = &hooked{writes: func(path string, err error) {
		if path != opts.Path && err == nil {
			wrote.Add(1)
		}
	}}
	l := open(t, opts)
	for i := range 100 {
		mustCommit(t, l, Begin(fullOwner(i)))
	}
	waitIdle(t, l)
	d.fill()
	s := l.store
	d.leave(int64(reserve(s.exits)) * sectorSize * 3 / 4)
	wrote.Store(0)
	outgrow := inWriter(func(l *Ledger) error { s.opts.minLog, s.snap, s.tired = 1, 0, time.Time{}; return nil })
	for range 3 {
		mustCommit(t, l, outgrow)
		waitIdle(t, l)
	}
	if n := wrote.Load(); n > 0 || s.tired.IsZero() || l.Stats().Rewrites > 0 {
		t.Errorf("%d writes to new files; %+v", n, l.Stats())
	}
	d.free()
	mustCommit(t, l, outgrow)
	waitIdle(t, l)
	if wrote.Load() == 0 || l.Stats().Rewrites == 0 {
		t.Errorf("with room it is not written anew: %+v", l.Stats())
	}
}

// A ledger may be opened on a disk that has no room for the whole reserve, for example a copy
// without its zeros. The ledger gets at least the room for all deletions, before somebody else
// takes that room.
func TestExitsFirst(t *testing.T) {
	d := newDisk(t, "16m")
	c := newClock()
	opts := testOptions(d.ledger(), c)
	l := open(t, opts)
	for i := range 300 {
		mustCommit(t, l, Begin(fullOwner(i)))
	}
	exits := l.store.exits
	must(t, l.Close())
	raw, err := os.ReadFile(opts.Path)
	must(t, err)
	must(t, os.Truncate(opts.Path, int64(used(t, raw)+sectorSize)))
	d.fill()
	d.leave(int64(exits+headReserve+baseReserve/2) * sectorSize)
	l = open(t, opts)
	if err := l.Writable(); !errors.Is(err, ErrFull) {
		t.Fatalf("the disk has room for the reserve: %v", err)
	}
	d.fill()
	for _, o := range l.Owners() {
		promise, end := whole(o, c, MaxName)
		mustCommit(t, l, promise...)
		mustCommit(t, l, end...)
	}
}

// The op Room takes no room away from the other commits of the same transaction.
func TestRoomTakesNone(t *testing.T) {
	d := newDisk(t, "16m")
	l := open(t, testOptions(d.ledger(), newClock()))
	d.fill()
	mustCommit(t, l, inWriter(func(l *Ledger) error {
		b := l.newBatch()
		for i := range 10000 {
			if err := b.staged(Room()); err != nil {
				t.Errorf("asked %d times: %v", i, err)
				break
			}
		}
		return nil
	}))
}

// A file that was written meanwhile does not replace a ledger that has failed: nobody knows
// what the file lacks.
func TestFailedTakesNothingOver(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	opts := testOptions(path, newClock())
	renames := 0
	opts.volume = &hooked{renames: func(string) error { renames++; return nil }}
	l := open(t, opts)
	mustCommit(t, l, inWriter(func(l *Ledger) error {
		renames = 0
		l.store.rewrite(l.state.contents())
		<-l.store.next.done
		_ = l.store.fail(unix.EIO)
		l.store.takeOver(0)
		return nil
	}))
	<-l.Failed()
	if renames > 0 || l.Stats().Rewrites > 0 {
		t.Errorf("%d renames, %+v", renames, l.Stats())
	}
	must(t, l.InPlace())
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// A disk may be so full that the file and its new version fill it. An ADD that comes meanwhile
// waits until the new one is there.
func TestAddWhileRewritten(t *testing.T) {
	d := newDisk(t, "24m")
	opts := testOptions(d.ledger(), newClock())
	aside, gate := make(chan bool, 100), make(chan bool)
	goOn := sync.OnceFunc(func() { close(gate) })
	var armed, adding atomic.Bool
	var tries atomic.Int32
	opts.Applied = func(Change) { adding.Store(false) }
	opts.volume = &hooked{
		syncs: func(path string) {
			if armed.Load() && path != opts.Path {
				aside <- true
				<-gate
			}
		},
		writes: func(_ string, err error) {
			if errors.Is(err, unix.ENOSPC) && adding.Load() && tries.Add(1) == 2 { // the ADD's second and last try to make room
				goOn()
			}
		},
	}
	l := open(t, opts)
	t.Cleanup(goOn) // closing the ledger waits for the new file
	for i := range 100 {
		mustCommit(t, l, Begin(fullOwner(i)))
	}
	waitIdle(t, l)
	armed.Store(true)
	mustCommit(t, l, inWriter(func(l *Ledger) error { l.store.opts.minLog, l.store.snap = 1, 0; return nil }))
	mustCommit(t, l, inWriter(func(l *Ledger) error { l.store.opts.minLog = 0; return nil }))
	<-aside
	d.fill() // all that the two files have left
	for i := range 300 {
		mustCommit(t, l, inWriter(func(*Ledger) error { tries.Store(0); adding.Store(true); return nil }), Begin(fullOwner(1000+i)))
	}
	select {
	case <-gate:
	default:
		t.Fatal("no ADD lacked room")
	}
	waitIdle(t, l)
	if s := l.Stats(); s.Rewrites == 0 || s.Owners != 400 {
		t.Errorf("%+v", s)
	}
}

// On a full disk the file is written anew sooner, so that ADDs have the room again that
// deletions took.
func TestFullDiskRewritten(t *testing.T) {
	d := newDisk(t, "16m")
	c := newClock()
	l := open(t, testOptions(d.ledger(), c))
	kept := fullOwner(0)
	mustCommit(t, l, Begin(kept))
	waitIdle(t, l)
	d.fill()
	i := 0
	bury := func(int) []Op {
		i++
		return []Op{Bury(Tombstone{fmt.Sprintf("network/%064d/eth0", i), c.boot, c.Boottime(), c.Boottime() + int64(time.Minute)})}
	}
	untilFull(t, l, bury)
	if err := l.Commit(t.Context(), Begin(fullOwner(1))); !errors.Is(err, ErrFull) {
		t.Fatalf("a pod is attached: %v", err)
	}
	c.now = c.now.Add(2 * time.Minute)
	d.leave(600 << 10) // too little for the reserve
	mustCommit(t, l, inWriter(func(l *Ledger) error { l.store.tired, l.store.full = time.Time{}, time.Unix(1, 0); return nil }))
	waitIdle(t, l)
	if l.Stats().Rewrites == 0 {
		t.Fatalf("the file was not written anew: %+v", l.Stats())
	}
	mustCommit(t, l, Begin(fullOwner(1)))
}

// Root may use up a file system's last blocks, others may not.
func TestUsable(t *testing.T) {
	s := &unix.Statfs_t{Bsize: 4096, Blocks: 1000, Bfree: 50, Bavail: 0}
	if root, other := usable(s, true), usable(s, false); root != 50*4096 || other != 0 {
		t.Errorf("root %d bytes, others %d", root, other)
	}
}

// TestFullDiskLarge is TestFullDisk with the largest owners.
func TestFullDiskLarge(t *testing.T) {
	d := newDisk(t, "64m")
	c := newClock()
	l := open(t, testOptions(d.ledger(), c))
	large := func() Op { return Begin(largeOwner()) }
	for range 40 {
		mustCommit(t, l, large(), Begin(newOwner()))
	}
	waitIdle(t, l)
	d.fill()
	for err := error(nil); !errors.Is(err, ErrFull); err = l.Commit(t.Context(), large()) {
		must(t, err)
	}
	for _, o := range l.Owners() {
		mustCommit(t, l, Releasing(o.ID, c.now))
		mustCommit(t, l, Forget(o.ID, c.now))
	}
	d.mustBeFull()
	d.free()
	mustCommit(t, l, large())
}

// If a batch cannot be written, because somebody has made a hole there, only the commits of
// that transaction fail.
func TestFullDiskHole(t *testing.T) {
	d := newDisk(t, "16m")
	c := newClock()
	l := open(t, testOptions(d.ledger(), c))
	a := newOwner(address("1"))
	mustCommit(t, l, Begin(a))
	before := contentOf(l)
	const page = 4096
	used := (l.store.tail + 4*page) / page * page
	must(t, unix.Fallocate(int(l.store.file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, used, l.store.size-used))
	d.fill()
	var err error
	for range 100 { // until the room before the hole is used up
		o := newOwner()
		o.Meta = json.RawMessage(`"` + strings.Repeat("m", 3*page) + `"`)
		if err = l.Commit(t.Context(), Begin(o)); err != nil {
			break
		}
		before = contentOf(l)
	}
	if !errors.Is(err, ErrFull) || errors.Is(err, ErrFailed) {
		t.Fatalf("a commit into the hole: %v", err)
	}
	if l.Stats().Failed == 0 {
		t.Fatal("the hole was not reached")
	}
	sameContent(t, contentOf(l), before)
	d.free()
	mustCommit(t, l, Begin(newOwner()), Forget(a.ID, c.now))
	want := contentOf(l)
	l.Close()
	sameContent(t, contentOf(open(t, testOptions(d.ledger(), c))), want)
}

// On a full disk no ledger is made, and none is left half-made.
func TestFullAtCreation(t *testing.T) {
	d := newDisk(t, "1m")
	opts := testOptions(d.ledger(), newClock())
	for range 2 {
		if _, err := Open(opts); !errors.Is(err, ErrFull) {
			t.Fatalf("Open says %v", err)
		}
	}
	if info, err := os.Stat(d.ledger()); err != nil || info.Size() > 0 {
		t.Errorf("left behind: %v, %v", info, err)
	}
	must(t, unix.Mount("tmpfs", d.dir, "tmpfs", unix.MS_REMOUNT, "size=32m"))
	mustCommit(t, open(t, opts), Begin(newOwner()))
}
