package nettest

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// AnotherBoot lets everybody read a boot id that the kernel does not have, until the test ends.
func AnotherBoot(t testing.TB) {
	t.Helper()
	const at = "/proc/sys/kernel/random/boot_id"
	fake := t.TempDir() + "/boot_id"
	Must(t, os.WriteFile(fake, []byte("01234567-89ab-cdef-0123-456789abcdef\n"), 0o644))
	if err := unix.Mount(fake, at, "", unix.MS_BIND, ""); err != nil {
		t.Fatalf("mount --bind %s %s: %v", fake, at, err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(at, 0); err != nil {
			t.Error(err)
		}
	})
}
