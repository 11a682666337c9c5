package ledger

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/hold"
)

// shaky is a volume on which one call fails, or every call from one on, or at which the
// process dies or the power fails. Calls that change nothing are not counted.
type shaky struct {
	local
	mode mode
	at   int // number of the call, from 1
	rand *rand.Rand

	mu      sync.Mutex
	calls   int
	what    string // the call that failed
	dead    bool
	pending []change // what is not durable yet
}

// mode says what happens at the call.
type mode struct {
	name  string
	err   error // what the call returns; nil: the process dies
	done  bool  // the call is done all the same
	half  bool  // half of a write is done, in whole sectors
	ever  bool  // all later calls fail in the same way
	power bool  // what is not durable may be lost; if a sync fails, only what the sync was to make durable
}

// change is a write or a rename that is not durable yet.
type change struct {
	file *os.File
	at   int64
	old  []byte
	size int64 // of the file before

	from, kept string // of a rename: the name, and another name of the file that lost its own
}

var errDead = errors.New("the process is dead")

// call counts a call, and does it unless it fails. file is the file that the call syncs, if it
// syncs one.
func (v *shaky) call(what string, file *os.File, do func() error, half func()) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.dead {
		return errDead
	}
	v.calls++
	if v.calls != v.at && (!v.mode.ever || v.calls < v.at) || v.mode.half && half == nil {
		return do()
	}
	if v.what == "" {
		v.what = what
	}
	if v.mode.err != nil && v.mode.power && file != nil {
		v.lose(file)
	}
	err := v.mode.err
	if v.mode.half {
		half()
	} else if v.mode.done {
		err = errors.Join(do(), err)
	}
	if v.mode.err == nil {
		v.dead = true
		v.lose(nil)
		return errDead
	}
	return err
}

// lose loses some of what is not durable, if the power has failed: of one file or, if file is nil,
// of all files.
func (v *shaky) lose(file *os.File) {
	for i := len(v.pending) - 1; i >= 0 && v.mode.power; i-- {
		c := v.pending[i]
		if file != nil && c.file != file {
			continue
		}
		if c.kept != "" {
			if v.rand.IntN(2) == 0 {
				_ = os.Rename(c.kept, c.from)
			}
			continue
		}
		all, none := v.rand.IntN(4) == 0, v.rand.IntN(4) == 0
		for at := 0; at < len(c.old); at += sectorSize {
			if all || !none && v.rand.IntN(2) == 0 {
				_, _ = c.file.WriteAt(c.old[at:min(len(c.old), at+sectorSize)], c.at+int64(at))
			}
		}
		if info, err := c.file.Stat(); err == nil && info.Size() > c.size && v.rand.IntN(2) == 0 {
			_ = c.file.Truncate(c.size)
		}
	}
}

func (v *shaky) open(path string, flag int) (file, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if flag&os.O_EXCL != 0 || err != nil { // it changes something
		err = v.call("create", nil, func() (err error) { f, err = os.OpenFile(path, flag|os.O_RDWR, 0o600); return err }, nil)
	}
	if err != nil {
		return nil, err
	}
	return &shakyFile{diskFile{f}, v}, nil
}

func (v *shaky) rename(from, to string) error {
	return v.call("rename", nil, func() error {
		kept := fmt.Sprintf("%s.kept-%d", to, v.calls)
		if err := errors.Join(os.Link(to, kept), os.Rename(from, to)); err != nil {
			return err
		}
		v.pending = append(v.pending, change{from: to, kept: kept})
		return nil
	}, nil)
}

func (v *shaky) link(from, to string) error {
	return v.call("link", nil, func() error { return os.Link(from, to) }, nil)
}

func (v *shaky) remove(path string) error {
	if _, err := os.Lstat(path); err != nil {
		return nil
	}
	return v.call("remove", nil, func() error { return os.Remove(path) }, nil)
}

func (v *shaky) syncDir(path string) error {
	return v.call("sync of the folder", nil, func() error { v.durable(nil); return v.local.syncDir(path) }, nil)
}

// durable makes a file's changes durable or, if f is nil, the renames.
func (v *shaky) durable(f *os.File) {
	left := v.pending[:0]
	for _, c := range v.pending {
		if c.file != f {
			left = append(left, c)
		}
	}
	v.pending = left
}

type shakyFile struct {
	diskFile
	vol *shaky
}

func (f *shakyFile) WriteAt(b []byte, at int64) (n int, err error) {
	write := func(b []byte) error {
		info, err := f.Stat()
		if err != nil {
			return err
		}
		if f.vol.mode.power {
			old := make([]byte, len(b))
			_, _ = f.ReadAt(old, at)
			f.vol.pending = append(f.vol.pending, change{file: f.File, at: at, old: old, size: info.Size()})
		}
		n, err = f.File.WriteAt(b, at)
		return err
	}
	err = f.vol.call(fmt.Sprintf("write of %d bytes at %d", len(b), at), nil, func() error { return write(b) }, func() { _ = write(b[:len(b)/2/sectorSize*sectorSize]) })
	return n, err
}

func (f *shakyFile) Truncate(size int64) error {
	return f.vol.call("truncate", nil, func() error { return f.File.Truncate(size) }, nil)
}

func (f *shakyFile) Punch(at, n int64) error {
	return f.vol.call("punch", nil, func() error { return f.diskFile.Punch(at, n) }, nil)
}

func (f *shakyFile) Sync() error {
	return f.vol.call("sync", f.File, func() error { f.vol.durable(f.File); return f.File.Sync() }, nil)
}

func (f *shakyFile) Datasync() error {
	return f.vol.call("datasync", f.File, func() error { f.vol.durable(f.File); return f.diskFile.Datasync() }, nil)
}

// story is what the crash tests do to a ledger: some commits, among them large ones, with
// the file written anew meanwhile, and the ledger opened again in the middle.
func story(c *clock) (commits [][]Op) {
	var owners []hold.Owner
	for i := range 9 {
		o := newOwner(address(fmt.Sprint(i)))
		o.ID = hold.ID(strings.Repeat(string(rune('a'+i)), 10))
		for j := range o.Holds {
			o.Holds[j].Owner = o.ID
		}
		if i%3 == 2 {
			o.Meta = json.RawMessage(`"` + strings.Repeat("m", i*700) + `"`)
		}
		if i == 4 {
			o.Meta = json.RawMessage(`"` + strings.Repeat("m", growBy*sectorSize/2) + `"`)
		}
		owners = append(owners, o)
		commits = append(commits, []Op{Begin(o)})
		if i%2 == 1 {
			commits = append(commits, []Op{Releasing(o.ID, c.now), Bury(Tombstone{string(o.ID), "b", 1, c.Boottime() + 1})})
		}
		if i%4 == 1 {
			commits = append(commits, []Op{Forget(o.ID, c.now)})
		}
	}
	return append(commits, []Op{Update(owners[2].ID, func(o *hold.Owner) error { o.Names, o.Meta = nil, nil; return nil })},
		[]Op{Enter(Epoch{Boot: "b"})})
}

// tell tells the story to a ledger, from its commit `from` on. tell returns how many commits the
// ledger has now, as far as they were answered. tell repeats a commit that failed, a few times.
func tell(l *Ledger, commits [][]Op, from int) (answered int, failed error) {
	for answered = from; answered < len(commits); answered++ {
		var err error
		for range 3 {
			if err = l.Commit(context.Background(), commits[answered]...); err == nil || errors.Is(err, ErrFailed) {
				break
			}
		}
		if err != nil {
			return answered, err
		}
		if answered%3 == 2 { // other commits come while the file is written anew
			waitDone(l)
		}
	}
	return answered, nil
}

// TestCrash tells the story again and again, each time with a fault at another call, until no
// call is left. After each fault the ledger must have all commits that were answered. It may also
// have the last commit, if that commit may have reached the disk.
func TestCrash(t *testing.T) {
	random := rand.New(rand.NewPCG(uint64(newSeed(t)), 0))
	d := newDisk(t, "256m")
	var states []content
	whole := story(newClock())
	for n := range len(whole) + 1 {
		l := open(t, testOptions(filepath.Join(t.TempDir(), "ledger.db"), newClock()))
		if _, err := tell(l, whole[:n], 0); err != nil {
			t.Fatal(err)
		}
		states = append(states, contentOf(l))
		l.Close()
	}
	old, _ := oldLedger(t, oldLedgers[0])
	for _, m := range []mode{
		{name: "EIO", err: unix.EIO},
		{name: "EIO for ever", err: unix.EIO, ever: true},
		{name: "EIO, and done", err: unix.EIO, done: true},
		{name: "EIO, and lost", err: unix.EIO, power: true},
		{name: "full", err: unix.ENOSPC},
		{name: "full for ever", err: unix.ENOSPC, ever: true},
		{name: "full within a write", err: unix.ENOSPC, half: true},
		{name: "killed before"},
		{name: "killed after", done: true},
		{name: "killed within a write", half: true},
		{name: "power lost before", power: true},
		{name: "power lost after", power: true, done: true},
	} {
		t.Run(m.name, func(t *testing.T) {
			runs := 0
			for at := 1; ; at++ {
				if testing.Short() {
					at += random.IntN(12)
				}
				v := &shaky{mode: m, at: at, rand: random}
				dir := filepath.Join(d.dir, "run")
				must(t, os.Mkdir(dir, 0o700))
				crash(t, v, filepath.Join(dir, "ledger.db"), whole, states, nil)
				fired, more := v.what != "", v.calls >= at
				if at%3 == 0 || !more {
					v = &shaky{mode: m, at: at, rand: random}
					crash(t, v, filepath.Join(dir, "old.db"), nil, nil, old)
				}
				must(t, os.RemoveAll(dir))
				if fired {
					runs++
				}
				if !more {
					break
				}
			}
			t.Logf("%d faults", runs)
			if runs < 3 {
				t.Error("hardly any call failed")
			}
		})
	}
}

// crash tells the story on a shaky volume, and checks what is left. If old is not nil, the
// ledger is one of version 1 instead, which is only opened.
func crash(t *testing.T, v *shaky, path string, whole [][]Op, states []content, old []byte) {
	t.Helper()
	c := newClock()
	opts := testOptions(path, c)
	if old != nil {
		writeAll(t, path, old)
		l := open(t, testOptions(path, newClock()))
		states = []content{contentOf(l)}
		l.Close()
		writeAll(t, path, old)
	}
	on := opts
	on.volume, on.minLog = v, 4<<10
	answered, perhaps := 0, 0
	for part := 1; part <= 2; part++ { // the second one is told to a ledger that was opened again
		l, err := Open(on)
		if err != nil {
			if v.what == "" {
				t.Fatal(err)
			}
			break
		}
		answered, err = tell(l, whole[:part*len(whole)/2], answered)
		if errors.Is(err, ErrFailed) {
			perhaps = 1
		} else if err != nil && (v.what == "" || !errors.Is(err, v.mode.err) && !errors.Is(err, errDead)) {
			t.Fatalf("%s at call %d: %v", v.what, v.at, err)
		}
		l.Close()
		if err != nil {
			break
		}
	}
	v.mu.Lock()
	v.dead = true // a goroutine that is left must not write any more
	v.mu.Unlock()

	l, err := Open(opts)
	if err != nil {
		t.Fatalf("%s at call %d: opened again: %v", v.what, v.at, err)
	}
	defer l.Close()
	have := contentOf(l)
	if !reflect.DeepEqual(have, states[answered]) && (perhaps == 0 || !reflect.DeepEqual(have, states[answered+1])) {
		t.Fatalf("%s at call %d: %d commits were answered; the ledger has\n%+v", v.what, v.at, answered, have)
	}
	mustCommit(t, l, Begin(newOwner()))
	want := contentOf(l)
	l.Close()
	again := open(t, opts)
	sameContent(t, contentOf(again), want)
	again.Close()
	if kept, err := os.ReadFile(formerPath(path)); old != nil && (err != nil || !bytes.Equal(kept, old)) && !errors.Is(v.mode.err, unix.ENOSPC) {
		t.Errorf("%s at call %d: %d bytes are kept of the former ledger, %v", v.what, v.at, len(kept), err)
	}
	left, err := filepath.Glob(path + ".new*")
	if err != nil || len(left) > 0 {
		t.Errorf("%s at call %d: left behind: %v, %v", v.what, v.at, left, err)
	}
}

// TestNameDurable kills a process that writes the file anew at each call, goes on with another
// one, and then has the power fail: all commits that the second process has answered are there,
// even if no sync of the folder by the first process has made the file's name durable.
func TestNameDurable(t *testing.T) {
	whole := story(newClock())
	renamed := 0
	for at := 1; ; at++ {
		path := filepath.Join(t.TempDir(), "ledger.db")
		opts := testOptions(path, newClock())
		first := &shaky{mode: mode{name: "killed before"}, at: at}
		opts.volume, opts.minLog = first, 4<<10
		if l, err := Open(opts); err == nil {
			_, _ = tell(l, whole, 0)
			waitDone(l)
			l.Close()
		}
		if first.calls < at {
			break
		}
		first.mu.Lock()
		first.dead = true
		lost := first.pending // the names that were not durable when the process died
		first.mu.Unlock()
		second := &shaky{pending: lost}
		opts.volume, opts.minLog = second, 0
		l, err := Open(opts)
		if err != nil {
			t.Fatalf("%s at call %d: %v", first.what, at, err)
		}
		mustCommit(t, l, Begin(newOwner()))
		want := contentOf(l)
		l.Close()
		renamed += len(lost)
		for _, c := range slices.Backward(second.pending) {
			must(t, os.Rename(c.kept, c.from))
		}
		opts.volume = nil
		again := open(t, opts)
		sameContent(t, contentOf(again), want)
		again.Close()
	}
	if renamed == 0 {
		t.Error("no process died between the rename and the sync of the folder")
	}
}

// waitDone waits until the writer has nothing left to do, or cannot do it any more.
func waitDone(l *Ledger) {
	for busy := true; busy; runtime.Gosched() {
		if err := l.Commit(context.Background(), inWriter(func(l *Ledger) error { busy = l.store.next != nil; return nil })); err != nil {
			return
		}
	}
}
