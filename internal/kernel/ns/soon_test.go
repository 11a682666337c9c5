package ns_test

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
)

// A path on a file system that hangs is given up on, at once from the second time on,
// and is a path like others when that answers again.
func TestOpenHangs(t *testing.T) {
	dir := t.TempDir()
	heal := nettest.Hang(t, dir)
	ref := ns.Ref{Path: filepath.Join(dir, "netns"), Ino: 1}
	for range 100 {
		begun := time.Now()
		if n, err := ref.Open(); !errors.Is(err, ns.ErrHangs) {
			t.Errorf("it opens %v, %v, after %v", n, err, time.Since(begun))
		}
	}
	heal()
	nettest.Eventually(t, "the path to be one like others", func() bool {
		_, err := ref.Open()
		return !errors.Is(err, ns.ErrHangs)
	})
}
