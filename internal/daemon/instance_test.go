package daemon

import (
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/root"
)

// If agents start at once on a new root, any one of them may come to serve. So all of them
// must have the id that its next start reads. By another id that start would find neither
// its pods' links nor its routes.
func TestAgentsThatStartAtOnceHaveOneInstance(t *testing.T) {
	for range 50 {
		dir := root.Dir(t.TempDir())
		must(t, os.MkdirAll(dir.State(), 0o700))
		var minted [4]string
		var all sync.WaitGroup
		for i := range minted {
			all.Go(func() {
				var err error
				minted[i], _, err = loadInstance(dir, func(string) (bool, error) { runtime.Gosched(); return false, nil })
				if err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		raw, err := os.ReadFile(dir.Instance())
		must(t, err)
		for _, id := range minted {
			if want := strings.TrimSpace(string(raw)); id != want {
				t.Fatalf("an agent runs as %q, and the next start will be %q", id, want)
			}
		}
	}
}

// Others, such as a backup that hangs, may lock the state folder (`flock DIR tar ...`). An
// agent makes an instance id, and reads it, all the same.
func TestStateFolderIsLocked(t *testing.T) {
	dir := root.Dir(t.TempDir())
	must(t, os.MkdirAll(dir.State(), 0o700))
	backup, err := os.Open(dir.State())
	must(t, err)
	defer backup.Close()
	must(t, unix.Flock(int(backup.Fd()), unix.LOCK_EX))
	load := func() (string, bool) {
		t.Helper()
		type loaded struct {
			id     string
			minted bool
			err    error
		}
		done := make(chan loaded, 1)
		go func() {
			id, minted, err := loadInstance(dir, func(string) (bool, error) { return false, nil })
			done <- loaded{id, minted, err}
		}()
		select {
		case l := <-done:
			must(t, l.err)
			return l.id, l.minted
		case <-time.After(10 * time.Second):
			t.Fatal("it waits for the lock")
		}
		return "", false
	}
	id, minted := load()
	if !minted {
		t.Error("no instance was begun")
	}
	// An agent that hangs while it makes an id does not keep an agent from starting that has
	// an id already.
	begins, err := take(dir.Instance()+".lock", dir, nil)
	must(t, err)
	defer func() { must(t, begins.release()) }()
	if again, minted := load(); again != id || minted {
		t.Errorf("%s is read as %s", id, again)
	}
}
