package ledger

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/hold"
)

// envChild, an environment variable, makes the test program a child that commits to the
// ledger at the path in it.
const envChild = "LEDGER_TEST_CHILD"

// said is a line that the child prints after each commit: the commit's owner.
type said struct {
	ID    hold.ID
	Names []hold.Name
	State string // begun, releasing, forgotten
}

// commitUntilKilled begins, releases and forgets owners, and prints a line after each
// commit.
func commitUntilKilled(path string) {
	l, err := Open(Options{Path: path, Kinds: testKinds, Rest: restAddresses, minLog: 16 << 10}) // the file is written anew now and then
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	var out sync.Mutex
	say := func(o hold.Owner, state string, op Op) {
		if err := l.Commit(context.Background(), op); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		line, _ := json.Marshal(said{o.ID, o.Names, state})
		out.Lock()
		defer out.Unlock()
		os.Stdout.Write(append(line, '\n'))
	}
	for range 4 {
		go func() {
			for {
				o := newOwner(address(string(hold.NewID())))
				say(o, "begun", Begin(o))
				if rand.IntN(3) > 0 {
					say(o, "releasing", Releasing(o.ID, time.Now()))
				}
				if rand.IntN(2) > 0 {
					say(o, "forgotten", Forget(o.ID, time.Now()))
				}
			}
		}()
	}
	select {}
}

// TestKill kills a child that commits, again and again, at any moment. The ledger must have
// what the child said it had committed, and must not be damaged.
func TestKill(t *testing.T) {
	random := rand.New(rand.NewPCG(uint64(newSeed(t)), 0))
	path := filepath.Join(t.TempDir(), "ledger.db")
	kills := 40
	if testing.Short() {
		kills = 5
	}
	heard := map[hold.ID]said{}
	for kill := range kills {
		child := exec.Command("/proc/self/exe")
		child.Env = append(os.Environ(), envChild+"="+path)
		child.Stderr = os.Stderr
		out, err := child.StdoutPipe()
		must(t, err)
		must(t, child.Start())
		// One child is killed at a moment, early ones while the child opens the ledger, or
		// creates it. The next child is killed after a number of commits, however slow the child
		// is.
		wait, commits := time.Hour, -1
		if kill%2 == 0 {
			wait = time.Duration(random.Int64N(int64(60 * time.Millisecond)))
		} else {
			commits = 1 + random.IntN(60)
		}
		timer := time.AfterFunc(wait, func() { child.Process.Kill() })
		lines := bufio.NewReader(out)
		for {
			line, err := lines.ReadBytes('\n')
			if err == io.EOF {
				break // the line was cut off: the child has told nobody of that commit
			}
			var s said
			if err := json.Unmarshal(line, &s); err != nil {
				t.Fatalf("child said %q: %v", line, err)
			}
			heard[s.ID] = s
			if commits--; commits == 0 {
				child.Process.Kill()
			}
		}
		if err := child.Wait(); child.ProcessState.Exited() {
			t.Fatalf("child ended by itself: %v", err)
		}
		timer.Stop()
		checkHeard(t, path, heard)
	}
	t.Logf("%d kills, %d owners", kills, len(heard))
	if len(heard) == 0 {
		t.Error("no child has committed anything")
	}
}

// checkHeard opens the ledger and checks that it has what the child has said.
func checkHeard(t *testing.T, path string, heard map[hold.ID]said) {
	t.Helper()
	l, err := Open(Options{Path: path, Kinds: testKinds, Rest: restAddresses})
	must(t, err)
	defer l.Close()
	resting := map[hold.Name]bool{}
	for _, r := range l.Resting() {
		resting[r.Name] = true
	}
	for id, s := range heard {
		o, ok := l.Owner(id)
		switch {
		case s.State == "forgotten" && (ok || !resting[s.Names[0]]):
			t.Errorf("owner %s was forgotten: there %v, name rests %v", id, ok, resting[s.Names[0]])
		case s.State == "releasing" && ok && o.Wanted():
			t.Errorf("owner %s was releasing, and is wanted", id)
		case s.State != "forgotten" && !ok && !resting[s.Names[0]]:
			t.Errorf("owner %s was %s, and is not there", id, s.State)
		}
	}
}
