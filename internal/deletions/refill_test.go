package deletions

import (
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/root"
)

// Several refills at once, such as that of a start and that of what the start's
// own spare files made the watch tell, make each file once: none that is there
// is replaced under the eyes of who looks for it. Found by make crash.
func TestRefillAtOnce(t *testing.T) {
	dir := root.Dir(t.TempDir())
	q, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	var mu sync.Mutex
	inodes := map[uint64]bool{}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if n, err := q.Refill(); err != nil || n != Spares {
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
