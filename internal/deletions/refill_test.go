package deletions

import (
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/root"
)

// Several refills at once make each file once, and replace no file that is there while
// somebody looks for it. An agent's first refill, at its start, and a second one once did replace
// such a file: the watch had told the agent of the spare files that the first refill made. Found by
// make crash.
func TestRefillAtOnce(t *testing.T) {
	dir := root.Dir(t.TempDir())
	q, err := Open(dir)
	must(t, err)
	defer q.Close()
	var mu sync.Mutex
	inodes := map[uint64]bool{}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if n, err := q.Refill(Spares); err != nil || n != Spares {
				t.Errorf("Refill: %d, %v", n, err)
			}
			entries, err := os.ReadDir(Path(dir))
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			for _, e := range entries {
				var st unix.Stat_t
				if err := unix.Stat(Path(dir)+"/"+e.Name(), &st); err != nil {
					t.Error(err)
				}
				inodes[st.Ino] = true
			}
		})
	}
	wg.Wait()
	if len(inodes) != Spares {
		t.Errorf("%d files have been there, want %d", len(inodes), Spares)
	}
}
