package deletions

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/test/programs"
)

// steps are the system calls by which a writer changes anything. strace counts each of them
// by itself, and in each thread by itself; the writer has one thread.
var steps = []string{"mkdirat", "pwrite64", "fdatasync", "fsync", "renameat", "unlinkat"}

// A writer dies before each of its steps in turn, and at last one writer lives. A promised
// deletion is in the queue exactly once, and the queue never has a half-written one.
func TestKills(t *testing.T) {
	nettest.Need(t) // for the mount
	programs.Need(t, "strace")
	for name, test := range map[string]struct {
		prepare func(root.Dir) // the folder was there before
		kills   int            // guesses of them are looks for a quick spare file, in vain
	}{
		"first":     {func(root.Dir) {}, guesses + 12},
		"second":    {func(dir root.Dir) { open(t, dir) }, guesses + 4},
		"quick":     {func(dir root.Dir) { refill(t, dir) }, 5},
		"full disk": {func(dir root.Dir) { refill(t, dir); useQuick(t, dir); nettest.Fill(t, string(dir)) }, guesses + 7},
	} {
		t.Run(name, func(t *testing.T) {
			kills := 0
			for _, step := range steps {
				for promised, when := false, 1; !promised; when++ {
					dir := root.Dir(mount(t, "size=4m"))
					test.prepare(dir)
					promised = writeUntil(t, dir, step, when)
					checkKilled(t, dir, fmt.Sprintf("%s %d", step, when), promised)
					if !promised {
						kills++
					}
				}
			}
			if kills != test.kills {
				t.Errorf("%d steps were seen, not %d", kills, test.kills)
			}
		})
	}
}

func refill(t *testing.T, dir root.Dir) {
	t.Helper()
	if n, err := open(t, dir).Refill(Spares); n != Spares || err != nil {
		t.Fatalf("%d spare files, %v", n, err)
	}
}

// useQuick leaves only reserved spare files.
func useQuick(t *testing.T, dir root.Dir) {
	t.Helper()
	for i := reserved; i < Spares; i++ {
		must(t, os.Remove(filepath.Join(Path(dir), spareName(i))))
	}
}

// writeUntil runs a writer that is killed before the when-th step of a sort, and
// reports whether it made its promise.
func writeUntil(t *testing.T, dir root.Dir, step string, when int) (promised bool) {
	t.Helper()
	log := filepath.Join(t.TempDir(), "strace")
	cmd := exec.Command("strace", "-f", "-o", log, "-e", "trace="+step,
		"-e", fmt.Sprintf("inject=%s:signal=KILL:when=%d", step, when), os.Args[0])
	cmd.Env = append(os.Environ(), envWrite+"="+string(dir))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	trace, _ := os.ReadFile(log)
	if promised = string(out) == "promised\n"; promised != (err == nil) || !promised && !bytes.Contains(trace, []byte("killed by SIGKILL")) {
		t.Fatalf("%s %d: %v, %q\n%s\n%s", step, when, err, out, stderr.String(), trace)
	}
	return promised
}

// checkKilled checks what a writer that died before a step has left.
func checkKilled(t *testing.T, dir root.Dir, step string, promised bool) {
	t.Helper()
	q := open(t, dir)
	entries := mustPending(t, q)
	if len(entries) > 1 || promised && len(entries) == 0 {
		t.Errorf("%s, promised %v: pending are %q", step, promised, containers(entries))
	}
	if d, err := q.Damaged(); err != nil || len(d) > 0 {
		t.Errorf("%s: damaged: %v, %v", step, d, err)
	}
	for _, e := range entries {
		if err := q.Remove(e.Name); err != nil {
			t.Error(err)
		}
	}
	// No file is left of a writer that died an hour ago.
	f, err := openFolder(dir)
	must(t, err)
	defer f.close()
	if err := f.removeStale(0); err != nil {
		t.Error(err)
	}
	if got := files(t, dir); len(got) > 0 {
		t.Errorf("%s: left: %v", step, got)
	}
}
