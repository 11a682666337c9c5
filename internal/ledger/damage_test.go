package ledger

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/hold"
)

// sample makes a small ledger that has a record of each sort, a snapshot, and a log of some
// batches. It returns the file's bytes and the ledger's snapshot.
func sample(t testing.TB) (raw []byte, want *Snapshot) {
	t.Helper()
	c := newClock()
	opts := testOptions(filepath.Join(t.TempDir(), "ledger.db"), c)
	l, err := Open(opts)
	must(t, err)
	must(t, l.SetEpoch(Epoch{Boot: "b"}))
	parent := newOwner(address("p/parent"))
	ops := []Op{Begin(parent)}
	big := newOwner()
	big.Meta = json.RawMessage(`"` + strings.Repeat("big", 1500) + `"`) // many sectors
	ops = append(ops, Begin(big))
	for i := range 16 {
		o := newOwner(address(fmt.Sprint("p/", i)))
		if i%5 == 0 {
			o.Needs = []hold.ID{parent.ID}
		}
		ops = append(ops, Begin(o))
		if i%4 == 0 {
			ops = append(ops, Releasing(o.ID, c.now))
		}
		if i%4 == 1 {
			ops = append(ops, Forget(o.ID, c.now), Bury(Tombstone{string(o.ID), "b", int64(i), c.Boottime() + 1}))
		}
		if len(ops) > 7 {
			mustCommit(t, l, ops...)
			ops = nil
		}
		if i == 5 {
			rewriteNow(t, l)
		}
	}
	mustCommit(t, l, ops...)
	must(t, l.Close())
	raw, err = os.ReadFile(opts.Path)
	must(t, err)
	want, err = Read(opts.Path, testKinds)
	must(t, err)
	if len(want.Owners) < 10 || len(want.Resting) < 4 || len(want.Tombstones) < 4 {
		t.Fatalf("sample has too little: %+v", want)
	}
	return raw, want
}

// inWriter is an op that lets a test do something in the writer's goroutine.
type inWriter func(*Ledger) error

func (f inWriter) ready(*Ledger) (step, error) {
	return step{0, func(b *batch) error { return f(b.ledger) }}, nil
}

// rewriteNow has the ledger's file written anew, and waits for that.
func rewriteNow(t testing.TB, l *Ledger) {
	t.Helper()
	before := l.Stats().Rewrites
	mustCommit(t, l, inWriter(func(l *Ledger) error { l.store.opts.minLog, l.store.snap = 1, 0; return nil }))
	mustCommit(t, l, inWriter(func(l *Ledger) error { l.store.opts.minLog = 0; return nil }))
	waitIdle(t, l)
	if l.Stats().Rewrites == before {
		t.Fatal("the file could not be written anew")
	}
}

// waitIdle waits until the writer has nothing left to do after the earlier commits: neither to grow
// the file nor to write it anew.
func waitIdle(t testing.TB, l *Ledger) {
	t.Helper()
	for busy := true; busy; runtime.Gosched() {
		mustCommit(t, l, inWriter(func(l *Ledger) error { busy = l.store.next != nil; return nil }))
	}
}

// logOf reads a log's bytes.
func logOf(t testing.TB, raw []byte) *logFile {
	t.Helper()
	l, err := readLog(bytes.NewReader(raw), int64(len(raw)))
	must(t, err)
	return l
}

// used returns where the zeros behind a log's last batch begin.
func used(t testing.TB, raw []byte) int { t.Helper(); return int(logOf(t, raw).tail) }

// spoilt is a file that a test damages and reads, again and again.
type spoilt struct {
	t    testing.TB
	path string
	want *Snapshot
}

// read reads the file, and reports whether it is damaged. If the file is not damaged, it must
// contain what it contained before.
func (s *spoilt) read(what string, at int) (damaged bool) {
	s.t.Helper()
	got, err := Read(s.path, testKinds)
	var d *DamagedError
	if errors.As(err, &d) {
		if d.Path != s.path || d.What == "" {
			s.t.Fatalf("%s %d: the error does not say what and where: %v", what, at, err)
		}
		return true
	}
	if err != nil {
		s.t.Fatalf("%s %d: %v", what, at, err)
	}
	if s.want == nil {
		return false
	}
	got.Path, got.Size = s.want.Path, s.want.Size
	if !reflect.DeepEqual(got, s.want) {
		s.t.Fatalf("%s %d: ledger now says something else, and nobody noticed", what, at)
	}
	return false
}

// open opens the file as an agent does. The outcome must be the same as that of read. If the
// file is damaged it must not change; else open works with the ledger.
func (s *spoilt) open(what string, at int, damaged bool) {
	s.t.Helper()
	before, err := os.ReadFile(s.path)
	must(s.t, err)
	l, err := Open(testOptions(s.path, newClock()))
	var d *DamagedError
	if errors.As(err, &d) != damaged || !damaged && err != nil {
		s.t.Fatalf("%s %d: damaged %v, Open says %v", what, at, damaged, err)
	}
	if damaged {
		after, err := os.ReadFile(s.path)
		if err != nil || !bytes.Equal(before, after) {
			s.t.Fatalf("%s %d: a damaged file was changed (%v)", what, at, err)
		}
		return
	}
	for _, o := range s.want.Owners {
		if o.Needs != nil {
			mustCommit(s.t, l, Forget(o.ID, newClock().now))
		}
	}
	mustCommit(s.t, l, Begin(newOwner(address("another"))))
	for _, o := range l.Owners()[:3] {
		mustCommit(s.t, l, Releasing(o.ID, newClock().now), Bury(Tombstone{Key: string(o.ID)}))
	}
	want := contentOf(l)
	must(s.t, l.Close())
	again := open(s.t, testOptions(s.path, newClock()))
	defer again.Close()
	sameContent(s.t, contentOf(again), want)
}

// TestFlippedBytes changes each byte of a ledger, one at a time. The reader notices each change.
func TestFlippedBytes(t *testing.T) {
	raw, want := sample(t)
	random := rand.New(rand.NewPCG(uint64(newSeed(t)), 0))
	end := used(t, raw) + 3*sectorSize
	s := &spoilt{t, filepath.Join(t.TempDir(), "flipped.db"), want}
	writeAll(t, s.path, raw[:end])
	f, err := os.OpenFile(s.path, os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	if s.read("byte", -1) {
		t.Fatal("it is damaged from the start")
	}
	for at := range end {
		if testing.Short() && at%7 > 0 {
			continue
		}
		spoil := []byte{raw[at] ^ byte(1<<random.IntN(8))}
		if random.IntN(2) == 0 {
			spoil[0] = raw[at] ^ byte(1+random.IntN(255))
		}
		write(t, f, spoil, at)
		if !s.read("byte", at) {
			t.Fatalf("byte %d: %#x instead of %#x, and nobody noticed", at, spoil[0], raw[at])
		}
		if random.IntN(300) == 0 {
			s.open("byte", at, true)
		}
		write(t, f, raw[at:at+1], at)
	}
}

func write(t testing.TB, f *os.File, b []byte, at int) {
	t.Helper()
	if _, err := f.WriteAt(b, int64(at)); err != nil {
		t.Fatal(err)
	}
}

// TestTruncated cuts a ledger off at every length.
func TestTruncated(t *testing.T) {
	raw, want := sample(t)
	s := &spoilt{t, filepath.Join(t.TempDir(), "cut.db"), want}
	end := used(t, raw)
	writeAll(t, s.path, raw)
	for n := end + 3*sectorSize; n > 0; n-- {
		if testing.Short() && n%sectorSize > 1 && n%11 > 0 {
			continue
		}
		must(t, os.Truncate(s.path, int64(n)))
		damaged := s.read("length", n)
		if damaged != (n < end+sectorSize) {
			t.Fatalf("length %d of %d: damaged %v", n, end, damaged)
		}
		if n%(5*sectorSize+1) == 0 {
			s.open("length", n, damaged)
			writeAll(t, s.path, raw)
		}
	}
}

// TestLostSectors puts each sector in the place of each other one. Sectors of the last batch
// that are zero are left to TestTorn.
func TestLostSectors(t *testing.T) {
	raw, want := sample(t)
	end := used(t, raw)
	raw = raw[:end+2*sectorSize]
	s := &spoilt{t, filepath.Join(t.TempDir(), "lost.db"), want}
	writeAll(t, s.path, raw)
	f, err := os.OpenFile(s.path, os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	for from := 0; from < len(raw); from += sectorSize {
		for to := 0; to < end; to += sectorSize {
			if from == to || from >= end && to >= lastBatch(t, raw) {
				continue
			}
			write(t, f, raw[from:from+sectorSize], to)
			if !s.read("copy of sector", from*1000+to) {
				t.Fatalf("sector at %d, copied to %d: nobody noticed", from, to)
			}
			write(t, f, raw[to:to+sectorSize], to)
		}
	}
}

// lastBatch returns where the last batch begins.
func lastBatch(t testing.TB, raw []byte) int { t.Helper(); return int(logOf(t, raw).last) }

// TestTorn loses each set of sectors of the last batch, as a crash may: the ledger has what
// it had before that batch, and goes on. In any other batch that is damage.
func TestTorn(t *testing.T) {
	c := newClock()
	opts := testOptions(filepath.Join(t.TempDir(), "ledger.db"), c)
	l := open(t, opts)
	large := func() hold.Owner {
		o := newOwner(address(string(hold.NewID())))
		o.Meta = json.RawMessage(`"` + strings.Repeat("m", 5*payloadMax) + `"`)
		return o
	}
	mustCommit(t, l, Begin(large()), Begin(newOwner()), Begin(newOwner()))
	before := l.Snapshot()
	mustCommit(t, l, Begin(large()))
	l.Close()
	raw, err := os.ReadFile(opts.Path)
	must(t, err)
	from, end := lastBatch(t, raw), used(t, raw)
	n := (end - from) / sectorSize
	if n < 6 || n > 7 {
		t.Fatalf("the batch has %d sectors", n)
	}
	for _, behind := range []int{1, 40} {
		for lost := 1; lost < 1<<n; lost++ {
			torn := bytes.Clone(raw[:end+behind*sectorSize])
			for i := range n {
				if lost&(1<<i) != 0 {
					clear(torn[from+i*sectorSize:][:sectorSize])
				}
			}
			s := &spoilt{t, filepath.Join(t.TempDir(), "torn.db"), &before}
			writeAll(t, s.path, torn)
			if s.read("lost sectors", lost) {
				_, err := Read(s.path, testKinds)
				t.Fatalf("lost sectors %b: %v", lost, err)
			}
			s.open("lost sectors", lost, false)
		}
	}
	rawBefore := raw[:end+sectorSize]
	for at := 0; at < from; at += sectorSize {
		spoil := bytes.Clone(rawBefore)
		clear(spoil[at:][:sectorSize])
		s := &spoilt{t, filepath.Join(t.TempDir(), "lost.db"), nil}
		writeAll(t, s.path, spoil)
		if !s.read("zero sector at", at) {
			t.Fatalf("sector at %d is lost, and nobody noticed", at)
		}
	}
}

// TestTornMixed puts a batch together from two batches that had the same number: a crash tore the
// one, and the other took its place.
func TestTornMixed(t *testing.T) {
	c := newClock()
	opts := testOptions(filepath.Join(t.TempDir(), "ledger.db"), c)
	a, b := newOwner(address("1")), newOwner(address("2"))
	a.Meta = json.RawMessage(`"` + strings.Repeat("a", 4*payloadMax) + `"`)
	b.Meta = json.RawMessage(`"` + strings.Repeat("b", 4*payloadMax) + `"`)
	l := open(t, opts)
	l.Close()
	empty, err := os.ReadFile(opts.Path)
	must(t, err)
	with := func(o hold.Owner) []byte {
		writeAll(t, opts.Path, empty)
		l := open(t, opts)
		mustCommit(t, l, Begin(o))
		l.Close()
		raw, err := os.ReadFile(opts.Path)
		must(t, err)
		return raw
	}
	withA, withB := with(a), with(b)
	from, end := lastBatch(t, withA), used(t, withA)
	if used(t, withB) != end {
		t.Fatal("the batches have different lengths")
	}
	n := (end - from) / sectorSize
	s := &spoilt{t, filepath.Join(t.TempDir(), "mixed.db"), nil}
	for mix := 1; mix < 1<<n-1; mix++ {
		spoil := bytes.Clone(withA[:end+sectorSize])
		for i := range n {
			if mix&(1<<i) != 0 {
				copy(spoil[from+i*sectorSize:][:sectorSize], withB[from+i*sectorSize:])
			}
		}
		writeAll(t, s.path, spoil)
		if !s.read("mixed", mix) {
			t.Fatalf("sectors %b are of another batch, and nobody noticed", mix)
		}
	}
}

// TestDurable loses sectors of what was durable before the file got its name: no crash can have
// torn these sectors, also if none follow them. And bytes behind the last sector are damage.
func TestDurable(t *testing.T) {
	opts := testOptions(filepath.Join(t.TempDir(), "ledger.db"), newClock())
	l := open(t, opts)
	for range 3 { // so that the snapshot has several batches
		o := newOwner()
		o.Meta = json.RawMessage(`"` + strings.Repeat("m", snapshotBy*2/3) + `"`)
		mustCommit(t, l, Begin(o))
	}
	rewriteNow(t, l)
	l.Close()
	raw, err := os.ReadFile(opts.Path)
	must(t, err)
	from, end := lastBatch(t, raw), used(t, raw)
	raw = raw[:end+2*sectorSize]
	s := &spoilt{t, opts.Path, nil}
	for n := sectorSize; n <= end-from; n += sectorSize {
		spoil := bytes.Clone(raw)
		clear(spoil[end-n : end])
		writeAll(t, s.path, spoil)
		if !s.read("bytes lost", n) {
			t.Errorf("the last %d bytes are lost, and nobody noticed", n)
		}
	}
	writeAll(t, s.path, append(bytes.Clone(raw), 0, 0, 1))
	if !s.read("bytes behind", 3) {
		t.Error("bytes behind the last sector, and nobody noticed")
	}
}

// TestOtherLife puts a batch into a ledger that its copy had under the same number.
func TestOtherLife(t *testing.T) {
	opts := testOptions(filepath.Join(t.TempDir(), "ledger.db"), newClock())
	open(t, opts).Close()
	var lives [2][]byte
	start, err := os.ReadFile(opts.Path)
	must(t, err)
	for i := range lives {
		writeAll(t, opts.Path, start)
		l := open(t, opts)
		mustCommit(t, l, Begin(newOwner(address("1"))))
		mustCommit(t, l, Begin(newOwner(address("2"))))
		l.Close()
		lives[i], err = os.ReadFile(opts.Path)
		must(t, err)
	}
	s := &spoilt{t, opts.Path, nil}
	from, to := used(t, start), lastBatch(t, lives[0])
	if lastBatch(t, lives[1]) != to {
		t.Fatal("the batches have different lengths")
	}
	copy(lives[0][from:to], lives[1][from:to])
	writeAll(t, s.path, lives[0])
	if !s.read("batch of another life", from) {
		t.Error("nobody noticed")
	}
}

// TestOlderCopy puts sectors of older copies of a ledger into the ledger: of the same file, and of
// the file before it was written anew.
func TestOlderCopy(t *testing.T) {
	c := newClock()
	opts := testOptions(filepath.Join(t.TempDir(), "ledger.db"), c)
	l := open(t, opts)
	var copies [][]byte
	for i := range 12 {
		mustCommit(t, l, Begin(newOwner(address(fmt.Sprint(i)))))
		if i == 5 {
			rewriteNow(t, l)
		}
		raw, err := os.ReadFile(opts.Path)
		must(t, err)
		copies = append(copies, raw[:used(t, raw)+sectorSize])
	}
	now := copies[len(copies)-1]
	end, last := used(t, now), lastBatch(t, now)
	s := &spoilt{t, filepath.Join(t.TempDir(), "older.db"), nil}
	for i, old := range copies[:len(copies)-1] {
		for at := 0; at < min(len(old), end); at += sectorSize {
			for _, n := range []int{1, 3} { // sectors
				to := min(at+n*sectorSize, len(old), end)
				to = min(to, max(at+sectorSize, last)) // zeros there are a torn batch
				if bytes.Equal(old[at:to], now[at:to]) || at >= last && isZero(old[at:at+sectorSize]) {
					continue
				}
				spoil := bytes.Clone(now)
				copy(spoil[at:to], old[at:to])
				writeAll(t, s.path, spoil)
				if !s.read("older sectors at", at) {
					t.Fatalf("bytes %d to %d of copy %d of %d: nobody noticed", at, to, i, len(copies))
				}
			}
		}
	}
}

// TestWrongRecords puts records into the file that are wrong, although their checksums are
// right.
func TestWrongRecords(t *testing.T) {
	c := newClock()
	a, b := newOwner(address("1")), newOwner(address("2"))
	lone := newOwner()
	lone.Needs = []hold.ID{b.ID}
	record := func(o hold.Owner) []byte {
		raw, err := json.Marshal(o)
		must(t, err)
		return raw
	}
	thief := b
	thief.Names = a.Names
	tests := []struct {
		name        string
		bucket, key string
		body        string
		text        string
		damaged     bool
	}{
		{"an owner under another's ID", bucketOwners, string(a.ID), string(record(b)), "says it is", true},
		{"an owner with another's name", bucketOwners, string(b.ID), string(record(thief)), "both have name", true},
		{"a child without its parent", bucketOwners, string(lone.ID), string(record(lone)), "which others need, has no record", true},
		{"an owner that is not understood", bucketOwners, string(a.ID), `{"id":5}`, "does not understand", false},
		{"a hold that is not understood", bucketOwners, string(a.ID), `{"id":"` + string(a.ID) + `","holds":[{"kind":"fixed","spec":5}]}`, "does not understand", false},
		{"a release of nobody", bucketReleasing, string(b.ID), `{"at":1}`, "releasing, but has no record", true},
		{"a rest of no name", bucketRests, "address", `{}`, "is not a name", true},
		{"a rest of another form", bucketRests, "address\x003", `{"freed":"x"}`, "cannot unmarshal", true},
		{"a tombstone of another form", bucketTombstones, "k", `[]`, "cannot unmarshal", true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			opts := testOptions(filepath.Join(t.TempDir(), "ledger.db"), c)
			l := open(t, opts)
			mustCommit(t, l, Begin(a))
			var c changes
			c.put(test.bucket, test.key, []byte(test.body))
			appendRaw(t, l, c.payload)
			_, err := Open(opts)
			var d *DamagedError
			if err == nil || errors.As(err, &d) != test.damaged || !strings.Contains(err.Error(), test.text) {
				t.Errorf("Open says %v, want %q", err, test.text)
			}
		})
	}
}

// appendRaw makes a payload the ledger's last batch, and closes the ledger.
func appendRaw(t *testing.T, l *Ledger, payload []byte) {
	t.Helper()
	mustCommit(t, l, inWriter(func(l *Ledger) error { return l.store.append(payload) }))
	must(t, l.Close())
}

// TestWrongChanges puts bytes into the file that are no changes, although their checksums are
// right.
func TestWrongChanges(t *testing.T) {
	var whole, drop, second changes
	whole.put(bucketTombstones, "k", []byte("{}"))
	drop.drop(bucketTombstones, "k")
	second.put(bucketMeta, "another", []byte("{}"))
	for name, test := range map[string]struct {
		payload []byte
		text    string
	}{
		"a bucket that is none":      {[]byte{99, 1, 'k', 1, 'x'}, "bucket 99"},
		"a record gone that was not": {drop.payload, "is not there"},
		"a key of no length":         {[]byte{4, 0}, "cut off"},
		"a key cut off":              {whole.payload[:2], "cut off"},
		"a record cut off":           {whole.payload[:len(whole.payload)-1], "cut off"},
		"a length without end":       {append([]byte{4}, bytes.Repeat([]byte{0xff}, 12)...), "cut off"},
		"a length beyond the end":    {[]byte{4, 0xff, 0xff, 0xff, 0xff, 0x0f, 'k'}, "cut off"},
		"a record too short":         {[]byte{4, 1, 'k', 1, 'x'}, "too short"},
		"a second head":              {second.payload, "want one head"},
	} {
		t.Run(name, func(t *testing.T) {
			opts := testOptions(filepath.Join(t.TempDir(), "ledger.db"), newClock())
			appendRaw(t, open(t, opts), test.payload)
			var d *DamagedError
			if _, err := Open(opts); !errors.As(err, &d) || !strings.Contains(d.What, test.text) {
				t.Errorf("Open says %v, want %q", err, test.text)
			}
		})
	}
	f := newFound()
	if err := errors.Join(f.apply(whole.payload, true), f.apply(whole.payload, false)); err != nil {
		t.Error(err)
	}
	if err := f.apply(whole.payload, true); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("a record twice in a snapshot: %v", err)
	}
}

// A ledger that a newer program has written is ErrNewer.
func TestNewer(t *testing.T) {
	var record, schema changes
	record.put(bucketTombstones, "k", []byte("{}"))
	at := len(record.payload) - len("{}") - recordHead
	record.payload[at]++
	binary.LittleEndian.PutUint32(record.payload[at+1:], checksum(bucketTombstones, "k", record.payload[at], []byte("{}")))
	schema.put(bucketMeta, headKey, []byte(fmt.Sprintf(`{"schema":%d}`, Schema+1)))
	for name, payload := range map[string][]byte{"schema": schema.payload, "record": record.payload, "file": nil} {
		t.Run(name, func(t *testing.T) {
			opts := testOptions(filepath.Join(t.TempDir(), "ledger.db"), newClock())
			l := open(t, opts)
			if payload != nil {
				appendRaw(t, l, payload)
			} else {
				l.Close()
				raw, err := os.ReadFile(opts.Path)
				must(t, err)
				raw[16]++
				binary.LittleEndian.PutUint32(raw[20:], fileHeadSum(raw))
				writeAll(t, opts.Path, raw)
			}
			var d *DamagedError
			if _, err := Open(opts); !errors.Is(err, ErrNewer) || errors.As(err, &d) {
				t.Errorf("Open says %v", err)
			}
			if _, err := Read(opts.Path, testKinds); !errors.Is(err, ErrNewer) {
				t.Errorf("Read says %v", err)
			}
		})
	}
}

// If the file of an open ledger is truncated, every commit fails from then on, but the
// program does not.
func TestCutOffWhileOpen(t *testing.T) {
	path := filled(t, 50)
	opts := testOptions(path, newClock())
	l := open(t, opts)
	id := l.Owners()[20].ID
	must(t, os.Truncate(path, 2*sectorSize))
	select {
	case <-l.Failed():
		t.Error("it has failed before a write")
	default:
	}
	if err := l.Commit(t.Context(), Forget(id, opts.Clock.Now())); !errors.Is(err, ErrFailed) {
		t.Fatalf("commit into a truncated file: %v", err)
	}
	<-l.Failed()
	if _, ok := l.Owner(id); !ok {
		t.Error("memory has changed")
	}
	if err := l.Commit(t.Context(), Begin(newOwner())); !errors.Is(err, ErrFailed) {
		t.Errorf("the next commit: %v", err)
	}
	if err := l.Writable(); !errors.Is(err, ErrFailed) {
		t.Errorf("writable: %v", err)
	}
	l.Close()
	var d *DamagedError
	if _, err := Read(path, testKinds); !errors.As(err, &d) {
		t.Errorf("reading it again: %v", err)
	}
}
