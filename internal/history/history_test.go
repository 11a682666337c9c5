package history

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/root"
)

// Readers get the records that were added, the last one first: in the same run, in the next
// one, and without any run.
func TestRead(t *testing.T) {
	dir := root.Dir(t.TempDir())
	r := newRig(t, Path(dir), 100)
	r.add(0, 3)
	r.want(t, "2-0")
	r.add(3, 5)
	r.want(t, "4-0")
	r.restart()
	r.want(t, "4-0")
	r.add(5, 6)
	r.want(t, "5-0")
	if got := read(t, Read(dir, r.limits, r.clock(), api.PastFilter{})); got != "5-0" {
		t.Errorf("without the agent: %s", got)
	}
	last := r.Read(api.PastFilter{Limit: 1})
	p, err := last.Next()
	if diff := cmp.Diff(past(5, begun), p); err != nil || diff != "" {
		t.Errorf("%v (-added +read):\n%s", err, diff)
	}
	if got := read(t, last); got != "" {
		t.Errorf("beyond the limit: %s", got)
	}
	if got := read(t, newRig(t, t.TempDir()+"/none", 1).Read(api.PastFilter{})); got != "" {
		t.Errorf("of no folder: %s", got)
	}
}

// Settle writes what was added, also without Keep. After a write that failed, Settle leaves the
// writing to Keep.
func TestSettle(t *testing.T) {
	dir := root.Dir(t.TempDir())
	r := newRig(t, Path(dir), 100)
	written := func() string { return read(t, Read(dir, r.limits, r.clock(), api.PastFilter{})) }
	var all sync.WaitGroup
	for n := range 20 {
		all.Go(func() {
			r.add(n, n+1)
			r.Settle()
		})
	}
	all.Wait()
	if names, _ := files(t, r.Dir); len(r.queue) > 0 || len(names) == 0 {
		t.Errorf("%d records wait", len(r.queue))
	}
	r.add(20, 21)
	r.Settle()
	if got := written(); !strings.HasPrefix(got, "20-") {
		t.Errorf("the files have %q", got)
	}
	must(t, os.RemoveAll(r.Dir))
	must(t, os.WriteFile(r.Dir, nil, 0o600))
	r.add(21, 22)
	r.Settle()
	must(t, os.Remove(r.Dir))
	r.add(22, 23)
	r.Settle()
	if lost, err := r.Trouble(); len(r.queue) != 2 || lost > 0 || err == nil {
		t.Errorf("after a failure %d records wait, %d are lost, %v", len(r.queue), lost, err)
	}
	must(t, r.Flush())
	r.add(23, 24)
	r.Settle()
	if got := written(); got != "23-21" {
		t.Errorf("the files have %q", got)
	}
}

// A record that corrects another record of the same attachment takes the other's place, wherever
// the other one is, and Find finds the correcting one.
func TestCorrect(t *testing.T) {
	r := newRig(t, t.TempDir(), 16) // two records a segment
	r.add(0, 4)
	for _, restart := range []bool{false, true} {
		r.pass(time.Minute)
		p := past(1, r.clock().Wall)
		r.Correct(p)
		if restart {
			r.restart()
		}
		r.want(t, "1-1 3-2 0-0")
		found := r.Find(map[string]bool{"id1": true, "id2": true, "other": true})
		if len(found) != 2 || !found["id1"].Ended.Equal(*p.Ended) || found["id2"].Attachment.ID != "id2" {
			t.Errorf("found: %+v", found)
		}
		for want, since := range map[string]time.Time{"1-1 3-2 0-0": begun, "1-1": begun.Add(time.Second), "": p.Ended.Add(time.Second)} {
			if got := read(t, r.Read(api.PastFilter{Since: since})); got != want {
				t.Errorf("since %s: %q, want %q", since, got, want)
			}
		}
	}
}

// A filter finds the attachments that it names, and no others.
func TestFilter(t *testing.T) {
	r := newRig(t, t.TempDir(), 1000)
	for n := range 300 {
		r.add(n, n+1)
		r.pass(time.Minute)
	}
	odd := past(300, r.clock().Wall)
	odd.Attachment.Pod.Name, odd.Attachment.Pod.Namespace = "a<b>&\"é", "o'dd"
	r.Add(odd)
	at := func(m int) time.Time { return begun.Add(time.Duration(m) * time.Minute) }
	for want, f := range map[string]api.PastFilter{
		"7-7":     {Pod: "default/web-7"},
		"8-8":     {Pod: "web-8"},
		"9-9":     {Pod: "uid-9"},
		"10-10":   {Container: "container10"},
		"11-11":   {Address: "10.88.0.11"},
		"12-12":   {Address: "fd00:88::c"},
		"72-13":   {At: at(13).Add(-time.Second), Limit: 60}, // each was there for an hour
		"300-290": {Since: at(290)},
		"300-300": {Pod: "o'dd/a<b>&\"é"},
		"":        {Pod: "other/web-7"},
		"14-14":   {Pod: "web-14", Container: "container14", Address: "10.88.0.14", Limit: 1},
		"300-298": {Limit: 3},
	} {
		if got := read(t, r.Read(f)); got != want {
			t.Errorf("%+v finds %q, want %q", f, got, want)
		}
	}
}

// The history has exactly as many records as the limit says, whatever happens between: writes
// of any length, restarts, another limit.
func TestLimit(t *testing.T) {
	r := newRig(t, t.TempDir(), 100)
	rng := rand.New(rand.NewPCG(1, 2))
	n := 0
	for range 150 {
		more := rng.IntN(20)
		r.add(n, n+more)
		n += more
		switch rng.IntN(3) {
		case 0:
			must(t, r.Flush())
		case 1:
			r.restart()
		}
		r.want(t, want(n, 100))
		if names, _ := files(t, r.Dir); len(names) > parts+2 {
			t.Fatalf("%d segments: %v", len(names), names)
		}
	}
	r.limits.Records = 7
	r.want(t, want(n, 7))
	r.limits.Records = 0
	r.add(n, n+1)
	r.want(t, "")
	if names, _ := files(t, r.Dir); len(names) > 0 {
		t.Errorf("left: %v", names)
	}
}

func want(n, limit int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%d-%d", n-1, max(0, n-limit))
}

// 25,000 attachments leave the last 10,000, in a bounded file and in bounded memory.
func TestMany(t *testing.T) {
	r := newRig(t, t.TempDir(), 10_000)
	for n := 0; n < 25_000; n += 500 {
		r.add(n, n+500)
		must(t, r.Flush())
	}
	r.want(t, "24999-15000")
	names, size := files(t, r.Dir)
	if len(names) > parts+2 || size > 16<<20 {
		t.Errorf("%d segments, %d bytes", len(names), size)
	}
	r.restart()
	r.want(t, "24999-15000")
	if lost, err := r.Trouble(); lost > 0 || err != nil {
		t.Error(lost, err)
	}
}

// The records that wait for the disk have bounded memory: the history drops the oldest ones
// first, and counts them.
func TestQueueIsBounded(t *testing.T) {
	r := newRig(t, t.TempDir(), 10_000)
	r.add(0, 5_000)
	waiting, size := len(r.queue), r.bytes
	lost, _ := r.Trouble()
	if size > maxQueue || waiting == 0 || int(lost) != 5_000-waiting {
		t.Errorf("%d records of %d bytes wait, %d are lost", waiting, size, lost)
	}
	r.want(t, want(5_000, waiting))
}

// A record has bounded texts and lists.
func TestBoundedRecord(t *testing.T) {
	r := newRig(t, t.TempDir(), 10)
	p := past(1, begun)
	p.Failed, p.CutError = strings.Repeat("é", 5000), strings.Repeat("x", 5000)
	for range 100 {
		h := p.Holds[0]
		h.Error, h.What = strings.Repeat("\x00", 5000), strings.Repeat("w", 5000)
		p.Holds = append(p.Holds, h)
		p.Attachment.HostPorts = append(p.Attachment.HostPorts, "tcp 0.0.0.0:8080 to 10.88.0.7:80")
	}
	r.Add(p)
	lost, _ := r.Trouble()
	text, err := encode(new(bytes.Buffer), record{Past: p})
	if err == nil && (len(text) > maxLine || lost > 0) {
		t.Errorf("%d bytes, %d lost", len(text), lost)
	}
	p.Holds = p.Holds[:4]
	r.Add(p)
	if got := read(t, r.Read(api.PastFilter{})); !strings.HasPrefix(got, "1-1") {
		t.Errorf("the history has %q", got)
	}
	if s := short(p.Failed); !strings.HasSuffix(s, "é...") {
		t.Errorf("%q is no text", s[len(s)-8:])
	}
}

// Records that are too old are not shown. Within a boot the wall clock has no say in that. For
// records of an earlier boot the wall clock counts, but nothing is removed as long as the clock
// may be wrong.
func TestAge(t *testing.T) {
	const year = 365 * 24 * time.Hour
	r := newRig(t, t.TempDir(), 100)
	r.add(0, 1)
	must(t, r.Flush())
	for _, d := range []time.Duration{year, -2 * year, year} {
		r.step(d)
		r.want(t, "0-0")
	}
	r.pass(4 * 24 * time.Hour)
	r.add(1, 2)
	must(t, r.Flush())
	if names, _ := files(t, r.Dir); len(names) != 2 {
		t.Errorf("a segment spans four days: %v", names)
	}
	r.pass(4 * 24 * time.Hour)
	r.want(t, "1-1")
	if names, _ := files(t, r.Dir); len(names) != 1 {
		t.Errorf("what is too old is left: %v", names)
	}
	r.reboot()
	r.restart()
	r.want(t, "1-1")
	r.step(year) // a clock that is wrong until somebody sets it
	r.want(t, "")
	r.pass(doubt / 2)
	r.step(-year)
	r.want(t, "1-1")
	r.step(year)
	r.want(t, "")
	r.pass(doubt / 2)
	r.want(t, "")
	r.step(-year)
	r.want(t, "1-1")
	r.step(year) // now it is right
	r.want(t, "")
	r.pass(doubt)
	must(t, r.Flush())
	r.step(-year)
	r.want(t, "")
	if names, _ := files(t, r.Dir); len(names) > 0 {
		t.Errorf("what is too old is left: %v", names)
	}
	r.step(-year) // before all of it
	r.add(2, 3)
	r.reboot()
	r.want(t, "2-2")
}

// Somebody removes the folder, or puts something else in the place of a segment.
func TestOthersInTheFolder(t *testing.T) {
	r := newRig(t, filepath.Join(t.TempDir(), "history"), 80)
	r.add(0, 1)
	must(t, r.Flush())
	must(t, os.RemoveAll(r.Dir))
	r.add(1, 2)
	r.want(t, "1-1")
	must(t, os.WriteFile(filepath.Join(r.Dir, "notes.txt"), []byte("mine"), 0o600))
	must(t, os.WriteFile(filepath.Join(r.Dir, "3.log"), []byte("mine"), 0o600))
	r.add(2, 300)
	r.want(t, "299-220")
	for _, name := range []string{"notes.txt", "3.log"} {
		if _, err := os.Stat(filepath.Join(r.Dir, name)); err != nil {
			t.Error(err)
		}
	}
	r.Close()
	was, err := Remove(root.Dir(t.TempDir()))
	if was || err != nil {
		t.Error(was, err)
	}
}
