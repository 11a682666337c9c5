package history

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/patience"
)

// A file that ends anywhere costs the record in which it ends, and nothing that comes after.
func TestTorn(t *testing.T) {
	r := newRig(t, t.TempDir(), 80)
	r.add(0, 3)
	must(t, r.Flush())
	whole, err := os.ReadFile(lastFile(t, r.Dir))
	must(t, err)
	start := bytes.LastIndexByte(whole[:len(whole)-1], '\n') + 1
	for end := start; end < len(whole); end += 1 + end%7 {
		dir := t.TempDir()
		must(t, os.WriteFile(filepath.Join(dir, "0000000001.log"), whole[:end], 0o600))
		r := newRig(t, dir, 80)
		r.add(3, 4)
		before := "3-3 1-0"
		if end == len(whole)-1 { // all but its end of line is there
			before = "3-0"
		}
		got := r.Read(api.PastFilter{})
		if text := read(t, got); text != before || got.Damaged() > 1 {
			t.Errorf("cut off at %d of %d: %q, %d damaged", end-start, len(whole)-start, text, got.Damaged())
		}
	}
}

// A changed byte costs one record, or two records if the byte was the newline between them.
func TestDamaged(t *testing.T) {
	r := newRig(t, t.TempDir(), 80)
	r.add(0, 5)
	must(t, r.Flush())
	path := lastFile(t, r.Dir)
	whole, err := os.ReadFile(path)
	must(t, err)
	for i := range len(head)*255 + 500 {
		bad := bytes.Clone(whole)
		at, change := i/255, 1+i%255 // first, all changes of the bytes that the checksum is not of
		if at >= len(head) {
			at, change = rand.IntN(len(bad)), 1+rand.IntN(255)
		}
		bad[at] ^= byte(change)
		must(t, os.WriteFile(path, bad, 0o600))
		got, n := r.Read(api.PastFilter{}), 0
		for {
			if _, err := got.Next(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			n++
		}
		if n < 3 || n > 4 || got.Damaged() == 0 {
			t.Errorf("byte %d is %#x, not %#x: %d records, %d damaged", at, bad[at], whole[at], n, got.Damaged())
		}
		got.Close()
	}
}

// Lines of another version, and long ones, are left out.
func TestStrangeLines(t *testing.T) {
	r := newRig(t, t.TempDir(), 800)
	r.add(0, 2)
	must(t, r.Flush())
	f, err := os.OpenFile(lastFile(t, r.Dir), os.O_APPEND|os.O_WRONLY, 0)
	must(t, err)
	fmt.Fprintf(f, "2 12345678 [\"all new\"]\n\n\nwhat is this\n%s\n", strings.Repeat("x", 5*block))
	must(t, f.Close())
	r.restart()
	r.add(2, 4)
	got := r.Read(api.PastFilter{})
	if text := read(t, got); text != "3-0" || got.Damaged() != 3 {
		t.Errorf("%q, %d damaged", text, got.Damaged())
	}
}

// A line without an end costs a reader no more memory than some blocks.
func TestEndlessLine(t *testing.T) {
	b := backward{pos: 100 * block}
	b.read = func(n int, _ int64) ([]byte, error) {
		if len(b.buf) > maxLine+block {
			t.Errorf("the reader has %d bytes in memory", len(b.buf))
		}
		return bytes.Repeat([]byte("x"), n), nil
	}
	if line, err := b.next(); string(line) != string(tooLong) || err != nil {
		t.Errorf("%.20q, %v", line, err)
	}
	if _, err := b.next(); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

// envWrite has this program write a history into a folder, and say so after each record.
const envWrite = "BERTH_TEST_HISTORY"

func writeOn(dir string) {
	h := New(Options{Dir: dir, Limits: func() Limits { return Limits{Records: 1 << 16, Age: time.Hour} }, Now: func() Now { return Now{Wall: begun, Boot: "b"} }})
	for n := 0; ; n++ {
		h.Add(past(n, begun))
		if n%3 == 2 {
			if err := h.Flush(); err != nil {
				fmt.Println(err)
				return
			}
			fmt.Println(n)
		}
	}
}

// A writer is killed anywhere. All records that it has written are there, and only the record
// under way may be torn; the next writer goes on.
func TestKilled(t *testing.T) {
	for kill := range 8 {
		dir := t.TempDir()
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), envWrite+"="+dir)
		out, err := cmd.StdoutPipe()
		must(t, err)
		must(t, cmd.Start())
		lines := bufio.NewScanner(out)
		for range 1 + 37*kill {
			if !lines.Scan() {
				t.Fatal("the writer has ended")
			}
		}
		must(t, cmd.Process.Kill())
		said := lines.Text()
		for lines.Scan() {
			said = lines.Text()
		}
		_ = cmd.Wait() // its error says that it was killed
		var n int
		_, err = fmt.Sscan(said, &n)
		must(t, err)
		r := newRig(t, dir, 1<<16)
		r.now.Boot = "b"
		got := r.Read(api.PastFilter{})
		text, first := read(t, got), 0
		if _, err := fmt.Sscanf(text, "%d-0", &first); err != nil || first < n || first > n+3 || got.Damaged() > 1 {
			t.Errorf("record %d was written, and the history has %q, %d damaged", n, text, got.Damaged())
		}
		r.add(first+1, first+3)
		r.want(t, fmt.Sprintf("%d-0", first+2))
	}
}

// On a full disk the history waits in memory, and is written when there is room again.
func TestFullDisk(t *testing.T) {
	nettest.Need(t)
	dir := t.TempDir()
	nettest.Mount(t, dir, "size=64k")
	r := newRig(t, filepath.Join(dir, "history"), 10_000)
	var failed error
	n := 0
	for ; n < 300; n += 10 {
		r.add(n, n+10)
		if err := r.Flush(); err != nil {
			failed = err
		}
	}
	if !errors.Is(failed, unix.ENOSPC) {
		t.Fatalf("a full disk: %v", failed)
	}
	r.want(t, want(n, n))
	if lost, err := r.Trouble(); lost > 0 || !errors.Is(err, unix.ENOSPC) {
		t.Errorf("%d lost: %v", lost, err)
	}
	if said := strings.Count(r.log.String(), "could not write the history"); said != 1 {
		t.Errorf("the log says it %d times:\n%s", said, r.log)
	}
	must(t, unix.Mount("", dir, "", unix.MS_REMOUNT, "size=4m"))
	r.add(n, n+1)
	must(t, r.Flush())
	if len(r.queue) > 0 || !strings.Contains(r.log.String(), "the history can be written again") {
		t.Errorf("%d records wait:\n%s", len(r.queue), r.log)
	}
	got := r.Read(api.PastFilter{})
	if text := read(t, got); text != want(n+1, n+1) {
		t.Errorf("the history has %q, %d damaged", text, got.Damaged())
	}
}

// A disk that hangs delays neither a caller that adds a record, nor a reader, nor an agent that
// ends.
func TestHangingDisk(t *testing.T) {
	dir := t.TempDir()
	ended := nettest.Goroutines(t)
	r := newRig(t, filepath.Join(dir, "history"), 1000)
	heal := nettest.Hang(t, dir)
	r.add(0, 10)
	if err := r.Flush(); !errors.Is(err, patience.ErrHangs) {
		t.Fatalf("a disk that hangs: %v", err)
	}
	r.add(10, 20)
	if _, err := r.Read(api.PastFilter{}).Next(); err != nil {
		t.Errorf("what is in memory: %v", err)
	}
	r.Close()
	if lost, _ := r.Trouble(); lost != 10 || len(r.queue) != 10 {
		t.Errorf("%d lost, %d wait", lost, len(r.queue))
	}
	heal()
	ended() // the one that wrote makes folders, which the test removes
}

// No file makes a reader fail, and the records between damaged lines are read: as many as the
// writer counts.
func FuzzRead(f *testing.F) {
	line, err := encode(new(bytes.Buffer), record{Past: past(1, begun), Boot: "b", At: 1})
	must(f, err)
	f.Add([]byte(nil), 0)
	f.Add(line, 3)
	f.Add(line[:len(line)-1], len(line))
	f.Add([]byte("\n\n1 00000000 \n2 x\n"), 1)
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, junk []byte, at int) {
		at = min(max(at, 0), len(junk))
		text := append(append(append([]byte(nil), junk[:at]...), '\n'), line...)
		text = append(append(text, junk[at:]...), '\n')
		must(t, os.WriteFile(filepath.Join(dir, "0000000001.log"), text, 0o600))
		s := segment{number: 1}
		must(t, s.survey(dir))
		r := newReader(dir, Limits{Records: 1 << 20, Age: 1 << 62}, Now{Boot: "b", Boottime: 1}, api.PastFilter{})
		defer r.Close()
		n, found := 0, false
		for {
			p, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			must(t, err)
			n++
			found = found || p.Attachment.ID == "id1"
		}
		if r.seen+r.damaged < s.records || n > s.records {
			t.Errorf("%d read, %d seen, %d damaged; the writer counts %d", n, r.seen, r.damaged, s.records)
		}
		if !found && len(junk)-at < maxLine { // otherwise a reader may take it for the end of a long line
			t.Errorf("the record between is not read of %q", text)
		}
	})
}
