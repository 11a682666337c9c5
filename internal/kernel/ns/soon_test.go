package ns_test

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
)

// OpenSoon gives up on a path whose file system hangs, from the second time on at once.
// When the file system answers again, OpenSoon opens the path as any other.
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
