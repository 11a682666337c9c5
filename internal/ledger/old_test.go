package ledger

import (
	"bytes"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// oldLedgers are ledgers of version 1, bbolt databases: the first one is without its unused
// pages; beside the others stands what a Read of the time said. They cannot be made anew.
var oldLedgers = []string{"testdata/bbolt-v1.db", "testdata/bbolt-12", "testdata/bbolt-300"}

func oldLedger(t testing.TB, name string) (raw []byte, want *Snapshot) {
	t.Helper()
	if filepath.Ext(name) == "" {
		must(t, json.Unmarshal(inflate(t, name+".json.gz"), &want))
		return inflate(t, name+".db.gz"), want
	}
	raw, err := os.ReadFile(name)
	must(t, err)
	return raw, nil
}

// sameRecords compares all of two snapshots except path and size.
func sameRecords(t testing.TB, have, want *Snapshot) {
	t.Helper()
	a, b := *have, *want
	a.Path, a.Size, b.Path, b.Size = "", 0, "", 0
	rawA, errA := json.Marshal(a)
	rawB, errB := json.Marshal(b)
	if errA != nil || errB != nil || !bytes.Equal(rawA, rawB) {
		t.Fatalf("snapshot\n%.3000s\nwant\n%.3000s", rawA, rawB)
	}
}

// A ledger of version 1 can be read. Open writes it anew, and then it has the same records.
func TestOld(t *testing.T) {
	for _, name := range oldLedgers {
		raw, want := oldLedger(t, name)
		c := newClock()
		c.now = c.now.Add(time.Minute) // later than all that the ledger says
		opts := testOptions(filepath.Join(t.TempDir(), "ledger.db"), c)
		writeAll(t, opts.Path, raw)
		read, err := Read(opts.Path, testKinds)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if want == nil {
			want = read
		}
		sameRecords(t, read, want)
		for range 2 {
			l := open(t, opts)
			live := l.Snapshot()
			sameRecords(t, &live, want)
			must(t, l.Close())
			if again, err := Read(opts.Path, testKinds); err != nil {
				t.Fatal(err)
			} else {
				sameRecords(t, again, want)
			}
		}
		now, err := os.ReadFile(opts.Path)
		if err != nil || !hasMagic(now) {
			t.Errorf("%s: it was not written anew (%v)", name, err)
		}
		if first, known := open(t, opts).First(); len(want.Owners) > 0 && filepath.Ext(name) == "" && (!known || first.Started != 5) {
			t.Errorf("%s: first agent %+v, %v", name, first, known)
		}
	}
	path := filepath.Join(t.TempDir(), "ledger.db")
	raw, _ := oldLedger(t, oldLedgers[0])
	writeAll(t, path, raw)
	checkGolden(t, path)
}

// Each changed byte of a ledger of version 1 is noticed, or does not matter.
func TestOldFlipped(t *testing.T) {
	raw, want := oldLedger(t, "testdata/bbolt-12")
	random := rand.New(rand.NewPCG(uint64(newSeed(t)), 0))
	pages := 0
	for at := 0; at+pageSize <= len(raw); at += pageSize {
		if !bytes.Equal(raw[at:at+pageSize], make([]byte, pageSize)) {
			pages = at/pageSize + 1
		}
	}
	raw = raw[:pages*pageSize]
	noticed := 0
	for at := random.IntN(5); at < len(raw); at += 1 + random.IntN(9) {
		spoil := bytes.Clone(raw)
		spoil[at] ^= byte(1 + random.IntN(255))
		l, err := load(bytes.NewReader(spoil), int64(len(spoil)), "old.db", testKinds, func(opening) reading { return asWritten })
		if err != nil {
			noticed++
			continue
		}
		have := l.state.snapshot()
		have.Schema = l.head.Schema
		sameRecords(t, &have, want)
	}
	if noticed < pageSize/20 {
		t.Errorf("only %d changed bytes were noticed", noticed)
	}
}

// TestOldLostPages exchanges whole pages, which no record's checksum shows.
func TestOldLostPages(t *testing.T) {
	raw, _ := oldLedger(t, oldLedgers[0])
	whole, err := load(bytes.NewReader(raw), int64(len(raw)), "old.db", testKinds, func(opening) reading { return asWritten })
	must(t, err)
	want := whole.state.snapshot()
	for from := 2; from < len(raw)/pageSize; from++ {
		for to := 2; to < len(raw)/pageSize; to++ {
			spoil := bytes.Clone(raw)
			copy(spoil[to*pageSize:][:pageSize], raw[from*pageSize:][:pageSize])
			order.PutUint64(spoil[to*pageSize:], uint64(to)) // the page says that it is the page whose place it has now
			if l, err := load(bytes.NewReader(spoil), int64(len(spoil)), "old.db", testKinds, func(opening) reading { return asWritten }); err == nil {
				have := l.state.snapshot()
				sameRecords(t, &have, &want)
			}
		}
	}
}

// A full disk keeps no agent from writing a ledger of version 1 anew, and from releasing all
// that it has.
func TestOldFullDisk(t *testing.T) {
	raw, want := oldLedger(t, "testdata/bbolt-300")
	d := newDisk(t, "32m")
	c := newClock()
	c.now = c.now.Add(time.Minute) // later than all that the ledger says
	opts := testOptions(d.ledger(), c)
	writeAll(t, opts.Path, raw)
	d.fill()
	l := open(t, opts)
	have := l.Snapshot()
	sameRecords(t, &have, want)
	if s := l.Stats(); s.Free < s.Reserve {
		t.Errorf("%d bytes are free, the reserve is %d", s.Free, s.Reserve)
	}
	for _, o := range have.Owners {
		if o.Wanted() {
			promise, _ := whole(o, c, MaxName)
			mustCommit(t, l, promise...)
		}
	}
	for left := l.Owners(); len(left) > 0; left = l.Owners() {
		for _, o := range left {
			if len(l.Needers(o.ID)) == 0 {
				mustCommit(t, l, Forget(o.ID, c.now))
			}
		}
	}
	must(t, l.Close())
	if n := len(open(t, opts).Owners()); n > 0 {
		t.Errorf("%d owners", n)
	}
}

// The ledger of version 1 stays beside the new one, as it was.
func TestOldKept(t *testing.T) {
	raw, _ := oldLedger(t, "testdata/bbolt-12")
	for name, before := range map[string]func(t *testing.T, path, former string){
		"nothing there":            func(*testing.T, string, string) {},
		"killed after it was kept": func(t *testing.T, path, former string) { must(t, os.Link(path, former)) },
		"of an earlier upgrade": func(t *testing.T, _, former string) {
			other, _ := oldLedger(t, oldLedgers[0])
			writeAll(t, former, other)
		},
	} {
		opts := testOptions(filepath.Join(t.TempDir(), "ledger.db"), newClock())
		writeAll(t, opts.Path, raw)
		before(t, opts.Path, formerPath(opts.Path))
		for range 2 {
			open(t, opts).Close()
		}
		if have, err := os.ReadFile(formerPath(opts.Path)); err != nil || !bytes.Equal(have, raw) {
			t.Errorf("%s: kept are %d bytes, %v", name, len(have), err)
		}
		if now, err := os.ReadFile(opts.Path); err != nil || !hasMagic(now) {
			t.Errorf("%s: it was not written anew (%v)", name, err)
		}
	}
}

// If the ledger of version 1 cannot be kept, it is written anew all the same, unless the disk
// fails. A file of somebody else's stays.
func TestOldNotKept(t *testing.T) {
	raw, _ := oldLedger(t, "testdata/bbolt-12")
	for _, no := range []error{unix.EPERM, unix.EOPNOTSUPP, unix.EMLINK, unix.ENOSPC} {
		opts := testOptions(filepath.Join(t.TempDir(), "ledger.db"), newClock())
		writeAll(t, opts.Path, raw)
		opts.volume = &hooked{links: func(string) error { return no }}
		open(t, opts).Close()
	}
	opts := testOptions(filepath.Join(t.TempDir(), "ledger.db"), newClock())
	writeAll(t, opts.Path, raw)
	opts.volume = &hooked{links: func(string) error { return unix.EIO }}
	if _, err := Open(opts); !errors.Is(err, unix.EIO) {
		t.Errorf("Open says %v", err)
	}
	opts.volume = nil
	writeAll(t, formerPath(opts.Path), []byte("another"))
	open(t, opts).Close()
	if have, err := os.ReadFile(formerPath(opts.Path)); err != nil || string(have) != "another" {
		t.Errorf("the other file is now %.20q, %v", have, err)
	}
}

// On a full disk the deletions need the room of the former ledger, and get it. With room for
// both, the former one stays.
func TestOldGivesWay(t *testing.T) {
	raw, want := oldLedger(t, "testdata/bbolt-300")
	for _, room := range []int64{700 << 10, 8 << 20} {
		d := newDisk(t, "32m")
		c := newClock()
		c.now = c.now.Add(time.Minute) // later than all that the ledger says
		opts := testOptions(d.ledger(), c)
		writeAll(t, opts.Path, raw)
		f, err := local{}.open(opts.Path, 0)
		must(t, err)
		_, img, err := readOld(f, int64(len(raw)))
		must(t, err)
		must(t, (&store{file: f}).shed(img)) // from now on the file can give no more room than its own
		must(t, f.Close())
		d.fill()
		d.leave(room)
		l := open(t, opts)
		have := l.Snapshot()
		sameRecords(t, &have, want)
		if s := l.Stats(); s.Free < int64(l.store.exits)*sectorSize {
			t.Errorf("%d bytes are free; %+v", s.Free, s)
		}
		if _, err := os.Stat(formerPath(opts.Path)); (err == nil) != (room > 1<<20) {
			t.Errorf("with %d bytes of room: %v; %+v", room, err, l.Stats())
		}
	}
}

// shed gives back what the ledger does not use, and nothing else.
func TestShed(t *testing.T) {
	raw, want := oldLedger(t, "testdata/bbolt-300")
	path := filepath.Join(newDisk(t, "32m").dir, "ledger.db")
	writeAll(t, path, raw)
	var no error // what the file system says to a hole
	synced, vol := false, &hooked{}
	f, err := vol.open(path, 0)
	must(t, err)
	defer f.Close()
	blocks := func() int64 {
		info, err := f.Stat()
		must(t, err)
		return info.Sys().(*syscall.Stat_t).Blocks * 512
	}
	_, img, err := readOld(f, int64(len(raw)))
	must(t, err)
	used := int64(0)
	for _, seen := range img.seen {
		if seen {
			used += pageSize
		}
	}
	if free := int64(len(img.seen))*pageSize - used; free == 0 {
		t.Fatal("all pages are used")
	}
	vol.syncs = func(string) { synced = true }
	vol.punches = func(string) error {
		if !synced {
			t.Error("nobody knows whether the pages that stay are durable")
		}
		return no
	}
	for _, no = range []error{unix.EOPNOTSUPP, unix.ENOSYS, nil} {
		synced = false
		must(t, (&store{file: f}).shed(img))
	}
	if have := blocks(); have != used {
		t.Errorf("it takes %d bytes, and uses %d", have, used)
	}
	snap, err := Read(path, testKinds)
	must(t, err)
	sameRecords(t, snap, want)
}
