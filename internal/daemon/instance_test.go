package daemon

import (
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/berth-net/berth/internal/root"
)

// Of agents that start at once on a new root one will serve, whichever. All of them
// have to have the id that its next start reads: by another one it would find
// neither its pods' links nor its routes.
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
