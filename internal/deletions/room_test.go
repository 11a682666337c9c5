package deletions

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/test/programs"
)

func TestSays(t *testing.T) {
	with := func(change func(*Record)) Record {
		r := example
		change(&r)
		return r
	}
	bare := with(func(r *Record) { r.Link, r.Addresses, r.Netns = "", nil, "" })
	for name, test := range map[string]struct {
		newer, older Record
		want         bool
	}{
		"repeated":             {with(func(r *Record) { r.Started++ }), example, true},
		"the same":             {example, example, true},
		"older":                {example, with(func(r *Record) { r.Started++ }), false},
		"another reason":       {with(func(r *Record) { r.Reason, r.Cut = "", false }), example, true},
		"another boot":         {with(func(r *Record) { r.Boot = "b" }), example, false},
		"another network":      {with(func(r *Record) { r.Network = "b" }), example, false},
		"another container":    {with(func(r *Record) { r.Container = "b" }), example, false},
		"another interface":    {with(func(r *Record) { r.Ifname = "b" }), example, false},
		"another link":         {with(func(r *Record) { r.Link = "b" }), example, false},
		"other addresses":      {with(func(r *Record) { r.Addresses = nil }), example, false},
		"another netns":        {with(func(r *Record) { r.Netns = "b" }), example, false},
		"without the result":   {bare, example, false},
		"with the result":      {example, bare, true},
		"nothing but its link": {example, with(func(r *Record) { r.Addresses, r.Netns = nil, "" }), true},
	} {
		if got := test.newer.says(test.older); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// repeated returns the n-th DEL of a pod.
func repeated(n int) Record {
	r := example
	r.Started += int64(n)
	return r
}

// pendingOf returns the deletions of the example's key that wait.
func pendingOf(t *testing.T, q *Queue) []Entry {
	t.Helper()
	of, err := q.PendingOf(example.Network, example.Container, example.Ifname)
	must(t, err)
	return of
}

// fullDisk makes a disk with spare files and no other room: tmpfs or ext4.
func fullDisk(t *testing.T, mount func(*testing.T) string) (root.Dir, *Queue) {
	t.Helper()
	nettest.Need(t) // for the mount
	dir := root.Dir(mount(t))
	refill(t, dir)
	nettest.Fill(t, string(dir))
	return dir, open(t, dir)
}

func tmpfs(t *testing.T) string { return mount(t, "size=4m") }

// A runtime repeats one pod's DEL on a full disk, and no agent is there. The repetitions take
// no room from other pods. The queue keeps the last DEL, and every DEL that the last one does
// not repeat.
func TestRepeatedOnFullDisk(t *testing.T) {
	for name, mount := range map[string]func(*testing.T) string{"tmpfs": tmpfs, "ext4": mountExt4} {
		t.Run(name, func(t *testing.T) {
			dir, q := fullDisk(t, mount)
			earlier := repeated(-1)
			earlier.Link, earlier.Boot = "babcdzzzzzzzzzz", "another"
			mustWrite(t, dir, earlier)
			earlier.Boot = example.Boot
			mustWrite(t, dir, earlier)
			const n = 3 * Spares
			for i := range n {
				mustWrite(t, dir, repeated(i))
			}
			of := pendingOf(t, q)
			if len(of) > Spares || of[len(of)-1].Record.Started != repeated(n-1).Started {
				t.Errorf("%d wait, the last of %+v", len(of), of[len(of)-1].Record)
			}
			links := map[string]bool{}
			for _, e := range of {
				links[e.Record.Boot+" "+e.Record.Link] = true
			}
			if len(links) != 3 {
				t.Errorf("they are about %v", links)
			}
			const others = Spares - 20 // ext4 has no room for some of the names
			for i := range others {
				r := numbered(i)
				r.Container = fmt.Sprint("other", i)
				if err := Write(dir, r); err != nil {
					t.Fatalf("the first deletion of another pod, the %d-th: %v", i, err)
				}
			}
			of = pendingOf(t, q)
			if last := of[len(of)-1].Record; len(of) < 3 || last.Started != repeated(n-1).Started {
				t.Errorf("%d are left, the last is %+v", len(of), last)
			}
			if all := mustPending(t, q); len(all) != others+len(of) {
				t.Errorf("%d deletions wait, not %d", len(all), others+len(of))
			}
		})
	}
}

// Deletions that were written while the disk had room, and are shorter than a spare file, make
// room, too.
func TestRepeatedBeforeTheDiskWasFull(t *testing.T) {
	nettest.Need(t) // for the mount
	dir := root.Dir(tmpfs(t))
	for i := range 50 {
		mustWrite(t, dir, repeated(i))
	}
	nettest.Fill(t, string(dir))
	mustWrite(t, dir, numbered(2))
	if got := containers(mustPending(t, open(t, dir))); got != "c2 c1" {
		t.Errorf("pending are %s", got)
	}
}

// A writer that makes room dies before each of its steps. A deletion that is repeated is there
// all the same.
func TestKillsInMakingRoom(t *testing.T) {
	programs.Need(t, "strace")
	for _, step := range append([]string{"renameat2"}, steps...) {
		for promised, when := false, 1; !promised; {
			dir, q := fullDisk(t, tmpfs)
			for i := range Spares { // short ones among them, which are removed
				r := repeated(-i - 1)
				if i%4 == 0 {
					mustWrite(t, dir, r)
					continue
				}
				content, err := r.encode()
				must(t, err)
				for j := range Spares {
					if err := os.Remove(filepath.Join(Path(dir), spareName(j))); err == nil {
						break
					}
				}
				must(t, withFolder(dir, func(f *folder) error { return f.writeNew(r, content) }))
			}
			promised = writeUntil(t, dir, step, when)
			of := pendingOf(t, q)
			if len(of) == 0 || len(of) > Spares {
				t.Fatalf("%s %d: %d deletions wait", step, when, len(of))
			}
			last := of[len(of)-1].Record.Started
			if want := repeated(-1).Started; last != want && last != example.Started || promised && last != example.Started {
				t.Errorf("%s %d, promised %v: the last is of %d", step, when, promised, last)
			}
			if d, err := q.Damaged(); err != nil || len(d) > 0 {
				t.Errorf("%s %d: damaged: %v, %v", step, when, d, err)
			}
			mustWrite(t, dir, example) // as a runtime does
			if when++; when > 5 {
				when += 100 // some hundred steps are alike
			}
		}
	}
}

func withFolder(dir root.Dir, do func(*folder) error) error {
	f, err := openFolder(dir)
	if err != nil {
		return err
	}
	defer f.close()
	return do(f)
}

// Several runtimes repeat their DELs on a full disk, and an agent does these deletions meanwhile.
// The agent sees the DEL that each runtime was promised last.
func TestMakingRoomWhileDrained(t *testing.T) {
	dir, q := fullDisk(t, tmpfs)
	const writers, each = 6, 200
	var wg sync.WaitGroup
	promised := make([]int64, writers)
	for w := range writers {
		wg.Go(func() {
			r := numbered(w)
			for range each {
				r.Started++
				err := Write(dir, r)
				if err == nil {
					promised[w] = r.Started
				} else if !errors.Is(err, unix.ENOSPC) {
					t.Error(err)
				}
			}
		})
	}
	written := make(chan struct{})
	go func() { wg.Wait(); close(written) }()
	seen := make(map[string]int64)
	for last := false; !last; {
		select {
		case <-written:
			last = true
		default:
		}
		entries, err := q.Pending()
		if err != nil {
			t.Error(err)
		}
		if !last && len(entries) < Spares/2 { // otherwise there is no need to make room
			continue
		}
		for _, e := range entries {
			seen[e.Record.Container] = max(seen[e.Record.Container], e.Record.Started)
			if err := q.Remove(e.Name); err != nil {
				t.Error(err)
			}
		}
	}
	for w, want := range promised {
		if got := seen[numbered(w).Container]; got < want || want == 0 {
			t.Errorf("of %s the last that is seen is of %d, promised is %d", numbered(w).Container, got, want)
		}
	}
	for _, name := range files(t, dir) {
		if !strings.HasPrefix(name, damagedName) {
			t.Errorf("left is %s", name)
		}
	}
	if d, err := q.Damaged(); err != nil || len(d) > 0 {
		t.Errorf("damaged: %v, %v", d, err)
	}
}

// BenchmarkMakeRoom measures the time that a DEL pays on a disk without any room on which
// deletions of many pods wait, one of each.
func BenchmarkMakeRoom(b *testing.B) {
	dir := root.Dir(b.TempDir())
	f, err := openFolder(dir)
	must(b, err)
	defer f.close()
	for i := range 10_000 {
		name, err := numbered(i).newName()
		must(b, err)
		must(b, os.WriteFile(filepath.Join(f.path, name), nil, 0o600))
	}
	for b.Loop() {
		if made, err := f.makeRoom(); made != 0 || err != nil {
			b.Fatal(made, err)
		}
	}
}

// On a full disk, writers die that have taken a spare file. Their files make room for others
// at once, and become spare files again. A writer that lives keeps its file.
func TestRoomOfKilledWriters(t *testing.T) {
	nettest.Need(t) // for the mount
	dir := root.Dir(mount(t, "size=4m"))
	refill(t, dir)
	nettest.Fill(t, string(dir))
	f, err := openFolder(dir)
	must(t, err)
	defer f.close()
	var living string
	for i := range Spares {
		tmp, err := f.rename(spareName(i), tmpName)
		must(t, err)
		if i == 0 {
			fd, err := f.claim(tmp)
			must(t, err)
			defer unix.Close(fd)
			living = tmp
		}
	}
	must(t, Write(dir, example))
	q := open(t, dir)
	if n := len(mustPending(t, q)); n != 1 {
		t.Errorf("%d deletions wait", n)
	}
	if _, err := f.claim(living); err != unix.ENOENT {
		t.Errorf("the file of a writer that lives is taken: %v", err)
	}
	if n, _ := q.Refill(Spares); n != Spares-2 {
		t.Errorf("%d spare files", n)
	}
	if names, err := f.list(); err != nil || !slices.Contains(names, living) {
		t.Errorf("the file of a writer that lives is gone: %v", err)
	}
}

// Some spare files are damaged, or something else has their names: on a full disk all the
// others find room for deletions, and a refill replaces what can be replaced.
func TestDamagedSpares(t *testing.T) {
	nettest.Need(t) // for the mount
	dir := root.Dir(mount(t, "size=4m"))
	refill(t, dir)
	q := open(t, dir)
	spare := func(i int) string { return filepath.Join(Path(dir), spareName(i)) }
	remove := func(i int) {
		t.Helper()
		must(t, os.Remove(spare(i)))
	}
	remove(1)
	remove(2)
	remove(Spares - 1)
	for _, err := range []error{
		os.Truncate(spare(0), 0), os.Truncate(spare(reserved), 0), os.Truncate(spare(Spares-2), 0),
		os.Symlink("elsewhere", spare(1)), os.Mkdir(spare(2), 0o700),
	} {
		must(t, err)
	}
	const good = Spares - 6
	nettest.Fill(t, string(dir))
	for i := range good {
		if err := Write(dir, numbered(i)); err != nil {
			t.Fatalf("deletion %d: %v", i, err)
		}
	}
	if err := Write(dir, numbered(good)); !errors.Is(err, unix.ENOSPC) || !errors.Is(err, errNoSpare) {
		t.Errorf("without a spare file: %v", err)
	}
	if n := len(mustPending(t, q)); n != good {
		t.Errorf("%d deletions wait, not %d", n, good)
	}
	must(t, os.Remove(filepath.Join(string(dir), "filler")))
	if n, err := q.Refill(Spares); n != Spares-1 || err == nil { // a folder stays
		t.Errorf("%d spare files, %v", n, err)
	}
}
