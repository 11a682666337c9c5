package ledger

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/boottime"
	"github.com/berth-net/berth/internal/hold"
)

// fixed is a spec for the tests. The kind of flexible, the other spec, discovers, so that the
// ledger copies flexible specs.
type fixed struct {
	Link string `json:"link"`
	MAC  string `json:"mac,omitempty"`
}

func (*fixed) Kind() string { return "fixed" }

func (f *fixed) String() string { return "fixed " + f.Link }

type flexible struct {
	Found string `json:"found,omitempty"`
}

func (*flexible) Kind() string { return "flexible" }

func (f *flexible) String() string { return "flexible " + f.Found }

var testKinds = hold.Kinds{
	{New: func() hold.Spec { return &fixed{} }},
	{New: func() hold.Spec { return &flexible{} }, Discovers: true},
}

// clock is the time of a test: the real time, by how much somebody has set the wall clock
// forward, and the boot.
type clock struct {
	now    time.Time
	step   time.Duration
	boot   string
	booted int64 // when CLOCK_BOOTTIME was 0, in Unix nanoseconds
}

func (c *clock) Wall() time.Time { return c.now.Add(c.step) }
func (c *clock) Boottime() int64 { return c.now.UnixNano() - c.booted }

// reboot takes no time.
func (c *clock) reboot() { c.boot, c.booted = c.boot+"+", c.now.UnixNano() }

func newClock() *clock {
	now := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	return &clock{now: now, boot: "boot", booted: now.UnixNano() - int64(time.Hour)}
}

const rest = 30 * time.Second

func address(a string) hold.Name { return hold.Name{Space: "address", Name: a} }

// restAddresses lets addresses rest, and no other names.
func restAddresses(n hold.Name) time.Duration {
	if n.Space == "address" {
		return rest
	}
	return 0
}

func testOptions(path string, c *clock) Options {
	return Options{
		Path: path, Kinds: testKinds, Rest: restAddresses, Clock: boottime.NewClock(c.Wall, c.Boottime), Boot: c.boot,
		wrote: bounded, pruneEvery: time.Hour, // the writer must not read the clock while a test sets it
	}
}

// bounded panics if a payload is longer than the room that was made for it.
func bounded(bytes, atMost int) {
	if bytes > atMost {
		panic(fmt.Sprintf("a payload has %d bytes, and could have %d at most", bytes, atMost))
	}
}

func open(t testing.TB, opts Options) *Ledger {
	t.Helper()
	l, err := Open(opts)
	must(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

// newOwner returns an owner like an attachment's, with names.
func newOwner(names ...hold.Name) hold.Owner {
	id := hold.NewID()
	return hold.Owner{
		ID: id, Names: names, Meta: json.RawMessage(`{"network":"a<b","pod":"web-0"}`),
		Holds: []hold.Hold{{Owner: id, Spec: &fixed{Link: "b" + string(id)}}, {Owner: id, Spec: &flexible{}}},
	}
}

func mustCommit(t testing.TB, l *Ledger, ops ...Op) {
	t.Helper()
	must(t, l.Commit(t.Context(), ops...))
}

func sameContent(t testing.TB, have, want content) {
	t.Helper()
	if !reflect.DeepEqual(have, want) {
		t.Fatalf("ledger has\n%+v\nwant\n%+v", have, want)
	}
}

func TestReopen(t *testing.T) {
	c := newClock()
	opts := testOptions(filepath.Join(t.TempDir(), "ledger.db"), c)
	l := open(t, opts)
	a, b, kid := newOwner(address("p/10.0.0.1"), hold.Name{Space: "port", Name: "80"}), newOwner(address("p/10.0.0.2")), newOwner()
	kid.Needs = []hold.ID{a.ID}
	kid.Meta = nil
	a.Holds = append(a.Holds, hold.Hold{Owner: a.ID, Spec: &hold.Unknown{Name: "later", Raw: json.RawMessage(`{"x":1}`)}})
	epoch := Epoch{Boot: "boot-1"}
	epoch.Netns.Ino = 4026531840
	must(t, l.SetEpoch(epoch))
	mustCommit(t, l, Begin(a), Begin(b), Begin(kid))
	earlier := hold.Earlier{Asked: c.now.Add(-time.Hour), Cut: c.now.Add(-time.Minute)}
	mustCommit(t, l, ReleasingAfter(kid.ID, c.now, earlier), Bury(Tombstone{"net/c1/eth0", "boot-1", 5, c.Boottime() + 1}))
	mustCommit(t, l, Forget(b.ID, c.now), Update(a.ID, func(o *hold.Owner) error {
		o.Holds[1].Spec.(*flexible).Found = "here"
		return nil
	}))
	want, live := contentOf(l), l.Snapshot()
	if len(want.Owners) != 2 || len(want.Rests) != 1 || len(want.Tombs) != 1 {
		t.Fatalf("unexpected content %+v", want)
	}
	must(t, l.Close())
	if err := l.Commit(t.Context(), Forget(a.ID, c.now)); !errors.Is(err, ErrClosed) {
		t.Errorf("commit after close: %v", err)
	}

	again := open(t, opts)
	sameContent(t, contentOf(again), want)
	if id, ok := again.Holder(address("p/10.0.0.1")); !ok || id != a.ID {
		t.Errorf("holder %v, %v", id, ok)
	}
	if o, ok := again.Owner(kid.ID); !ok || !o.Releasing.Equal(c.now) || o.Earlier == nil || !o.Earlier.Asked.Equal(earlier.Asked) || !o.Earlier.Cut.Equal(earlier.Cut) || !slices.Equal(o.Needs, kid.Needs) {
		t.Errorf("child %+v, %v", o, ok)
	}
	if o, _ := again.Owner(a.ID); o.Holds[1].Spec.(*flexible).Found != "here" {
		t.Errorf("update is lost: %+v", o.Holds[1].Spec)
	}
	must(t, again.Close())

	snap, err := Read(opts.Path, testKinds)
	must(t, err)
	if !reflect.DeepEqual(snap.Owners, want.Owners) || !reflect.DeepEqual(snap.Resting, want.Rests) || snap.Epoch != want.Epoch {
		t.Errorf("snapshot %+v, want %+v", snap, want)
	}
	sameRecords(t, snap, &live)
}

// copyOf copies an open ledger's file as it is now.
func copyOf(t testing.TB, l *Ledger) string {
	t.Helper()
	raw, err := os.ReadFile(l.opts.Path)
	must(t, err)
	path := filepath.Join(t.TempDir(), "copy.db")
	must(t, os.WriteFile(path, raw, 0o600))
	return path
}

// golden is a ledger that an earlier build of this version has written, with its zeros.
const golden = "testdata/v2.db.gz"

// A ledger that an earlier build has written can be read. -update writes it anew.
func TestGolden(t *testing.T) {
	if *updateGolden {
		raw, _ := sample(t)
		deflate(t, golden, raw)
	}
	path := filepath.Join(t.TempDir(), "ledger.db")
	writeAll(t, path, inflate(t, golden))
	checkGolden(t, path)
}

// checkGolden checks that a ledger has what sample makes.
func checkGolden(t *testing.T, path string) {
	t.Helper()
	l := open(t, testOptions(path, newClock()))
	if s := l.Stats(); s.Owners != 14 || s.Names != 13 || s.Resting != 4 || s.Tombstones != 4 || l.Epoch().Boot != "b" {
		t.Errorf("golden ledger has %+v, epoch %+v", s, l.Epoch())
	}
	parent, ok := l.Holder(address("p/parent"))
	if !ok || len(l.Needers(parent)) != 3 { // that build wrote it as their parent
		t.Errorf("%q is needed by %v", parent, l.Needers(parent))
	}
	releasing := 0
	for _, o := range l.Owners() {
		if !o.Wanted() {
			releasing++
		}
		if o.ID != parent && len(o.Names) > 0 && o.Holds[0].Spec.(*fixed).Link != "b"+string(o.ID) {
			t.Errorf("owner %+v", o)
		}
	}
	if releasing != 4 {
		t.Errorf("%d are releasing", releasing)
	}
}

func inflate(t testing.TB, path string) []byte {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	must(t, err)
	raw, err := io.ReadAll(z)
	must(t, err)
	return raw
}

func deflate(t testing.TB, path string, raw []byte) {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	if _, err := z.Write(raw); err != nil {
		t.Fatal(err)
	}
	must(t, errors.Join(z.Close(), os.WriteFile(path, out.Bytes(), 0o644)))
}
