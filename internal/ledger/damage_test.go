package ledger

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"

	"github.com/berth-net/berth/internal/hold"
)

// sample makes a small ledger that has a record of each sort, several pages, and freed
// pages. It returns the file's bytes, its high water mark in pages, and the ledger's
// snapshot.
func sample(t testing.TB) (raw []byte, pages int, want *Snapshot) {
	t.Helper()
	c := newClock()
	opts := testOptions(filepath.Join(t.TempDir(), "ledger.db"), c)
	l, err := Open(opts)
	must(t, err)
	must(t, l.SetEpoch(Epoch{Boot: "b"}))
	parent := newOwner(address("p/parent"))
	ops := []Op{Begin(parent)}
	big := newOwner()
	big.Meta = json.RawMessage(`"` + strings.Repeat("big", 1500) + `"`) // overflow pages
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
		if len(ops) > 11 {
			mustCommit(t, l, ops...)
			ops = nil
		}
	}
	mustCommit(t, l, ops...)
	pages = l.store.room.high
	must(t, l.Close())
	raw, err = os.ReadFile(opts.Path)
	must(t, err)
	want, err = Read(opts.Path, testKinds)
	must(t, err)
	if len(want.Owners) < 10 || len(want.Resting) < 4 || len(want.Tombstones) < 4 {
		t.Fatalf("sample has too little: %+v", want)
	}
	return raw, pages, want
}

// spoilt is a file that a test damages and reads, again and again.
type spoilt struct {
	t    testing.TB
	path string
	want *Snapshot
}

// read reads the file, and reports whether it is damaged. If it is not, it must contain what
// it contained before.
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

// TestFlippedBytes changes each byte of a ledger, one at a time.
func TestFlippedBytes(t *testing.T) {
	raw, pages, want := sample(t)
	random := rand.New(rand.NewPCG(uint64(newSeed(t)), 0))
	s := &spoilt{t, filepath.Join(t.TempDir(), "flipped.db"), want}
	must(t, os.WriteFile(s.path, raw, 0o600))
	f, err := os.OpenFile(s.path, os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	noticed, opened := 0, 0
	used := usedPages(t, s.path)
	for at := range pages * pageSize {
		if !used[at/pageSize] && at%37 > 0 || testing.Short() && at%7 > 0 {
			continue
		}
		spoil := []byte{raw[at] ^ byte(1<<random.IntN(8))}
		if random.IntN(2) == 0 {
			spoil[0] = raw[at] ^ byte(1+random.IntN(255))
		}
		write(t, f, spoil, at)
		damaged := s.read("byte", at)
		if damaged {
			noticed++
		}
		// bbolt may panic when it writes after a change in a page's header that nobody
		// has noticed.
		structure := used[at/pageSize] && at >= 2*pageSize && at%pageSize < pageHead+8*elementLen
		if random.IntN(1000) == 0 || structure && !damaged {
			opened++
			s.open("byte", at, damaged)
			write(t, f, raw[:pages*pageSize], 0) // after the work done there
		} else {
			write(t, f, raw[at:at+1], at)
		}
	}
	t.Logf("%d pages, %d changes noticed, the other bytes are not in use; %d opened as well", pages, noticed, opened)
	if noticed < pageSize/10 {
		t.Error("hardly any changed byte was noticed")
	}
}

// usedPages returns which pages of a ledger something refers to.
func usedPages(t testing.TB, path string) []bool {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	info, err := f.Stat()
	must(t, err)
	img, err := readImage(f, info.Size())
	must(t, err)
	must(t, img.walk(func(string, []byte, []byte) error { return nil }))
	return img.seen
}

func write(t testing.TB, f *os.File, b []byte, at int) {
	t.Helper()
	if _, err := f.WriteAt(b, int64(at)); err != nil {
		t.Fatal(err)
	}
}

// TestTruncated cuts a ledger off at many lengths.
func TestTruncated(t *testing.T) {
	raw, pages, want := sample(t)
	random := rand.New(rand.NewPCG(uint64(newSeed(t)), 0))
	s := &spoilt{t, filepath.Join(t.TempDir(), "cut.db"), want}
	lengths := []int{1, 15, pageHead, pageHead + metaLen, pageSize - 1, pageSize, 2 * pageSize, 2*pageSize + 1,
		pages*pageSize - 1, pages * pageSize, pages*pageSize + 1, len(raw) - 1, len(raw)}
	for range 200 {
		lengths = append(lengths, 1+random.IntN(pages*pageSize))
	}
	for _, n := range lengths {
		must(t, os.WriteFile(s.path, raw[:n], 0o600))
		damaged := s.read("length", n)
		if damaged != (n < pages*pageSize) {
			t.Errorf("length %d: damaged %v", n, damaged)
		}
		s.open("length", n, damaged)
	}
}

// TestLostPages exchanges whole pages, which no record's checksum shows.
func TestLostPages(t *testing.T) {
	raw, pages, want := sample(t)
	s := &spoilt{t, filepath.Join(t.TempDir(), "lost.db"), want}
	for from := 2; from < pages; from++ {
		for to := 2; to < pages; to++ {
			spoil := bytes.Clone(raw[:pages*pageSize])
			copy(spoil[to*pageSize:][:pageSize], raw[from*pageSize:][:pageSize])
			order.PutUint64(spoil[to*pageSize:], uint64(to)) // it says it is that page
			must(t, os.WriteFile(s.path, spoil, 0o600))
			s.read("copy of page", from*1000+to)
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
		{"a rest of a taken name", bucketRests, "address\x001", `{}`, "has it", true},
		{"a rest of another form", bucketRests, "address\x003", `{"freed":"x"}`, "cannot unmarshal", true},
		{"a tombstone of another form", bucketTombstones, "k", `[]`, "cannot unmarshal", true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			opts := testOptions(filepath.Join(t.TempDir(), "ledger.db"), c)
			l := open(t, opts)
			mustCommit(t, l, Begin(a))
			err := l.store.db.Update(func(tx *bolt.Tx) error {
				l.store.head.Seq = uint64(tx.ID())
				w := into(tx, &l.store.head, test.bucket)
				w.put(test.key, []byte(test.body))
				return errors.Join(w.err, putHead(tx, &l.store.head))
			})
			must(t, errors.Join(err, l.Close()))
			_, err = Open(opts)
			var d *DamagedError
			if err == nil || errors.As(err, &d) != test.damaged || !strings.Contains(err.Error(), test.text) {
				t.Errorf("Open says %v, want %q", err, test.text)
			}
		})
	}
}

// A missing bucket is noticed even if it was empty.
func TestBuckets(t *testing.T) {
	for name, change := range map[string]func(tx *bolt.Tx) error{
		"missing": func(tx *bolt.Tx) error { return tx.DeleteBucket([]byte(bucketRests)) },
		"more":    func(tx *bolt.Tx) error { _, err := tx.CreateBucket([]byte("more")); return err },
		"within": func(tx *bolt.Tx) error {
			_, err := tx.Bucket([]byte(bucketRests)).CreateBucket([]byte("within"))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			opts := testOptions(filepath.Join(t.TempDir(), "ledger.db"), newClock())
			l := open(t, opts)
			err := l.store.db.Update(func(tx *bolt.Tx) error {
				l.store.head.Seq = uint64(tx.ID())
				return errors.Join(change(tx), putHead(tx, &l.store.head))
			})
			must(t, errors.Join(err, l.Close()))
			var d *DamagedError
			if _, err := Open(opts); !errors.As(err, &d) || !strings.Contains(d.What, "bucket") {
				t.Errorf("Open says %v", err)
			}
		})
	}
}

// A ledger that a newer program has written is ErrNewer.
func TestNewer(t *testing.T) {
	newFormat := func(bucket string, key, rec []byte) []byte {
		rec[0]++
		order := checksum(bucket, key, rec[0], rec[recordHead:])
		rec[1], rec[2], rec[3], rec[4] = byte(order), byte(order>>8), byte(order>>16), byte(order>>24)
		return rec
	}
	tests := map[string]func(tx *bolt.Tx, h *head) error{
		"schema": func(tx *bolt.Tx, h *head) error {
			h.Schema = Schema + 1
			return putHead(tx, h)
		},
		"head": func(tx *bolt.Tx, h *head) error {
			body, _ := json.Marshal(h)
			return tx.Bucket([]byte(bucketMeta)).Put(headKey, newFormat(bucketMeta, headKey, seal(bucketMeta, headKey, body)))
		},
		"record": func(tx *bolt.Tx, h *head) error {
			rec := newFormat(bucketTombstones, []byte("k"), seal(bucketTombstones, []byte("k"), []byte("{}")))
			h.Sums[bucketTombstones].add(rec)
			return errors.Join(tx.Bucket([]byte(bucketTombstones)).Put([]byte("k"), rec), putHead(tx, h))
		},
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			opts := testOptions(filepath.Join(t.TempDir(), "ledger.db"), newClock())
			l := open(t, opts)
			err := l.store.db.Update(func(tx *bolt.Tx) error {
				l.store.head.Seq = uint64(tx.ID())
				return change(tx, &l.store.head)
			})
			must(t, errors.Join(err, l.Close()))
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
	must(t, os.Truncate(path, 2*pageSize))
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
