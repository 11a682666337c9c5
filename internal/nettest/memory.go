package nettest

import (
	"os"
	"testing"
)

// Memory makes a folder where an fsync costs nothing, if there is such a place. The test's end
// removes the folder, if the test has not done so.
func Memory(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "berth")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}
