// Package trial is what the tests of this module share: how they begin, and what they need of the machine. Berth's own tests have more
// (internal/nettest), but a package of Berth would bring Berth's dependencies into this module.
package trial

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Must ends the test if one of errs is an error. Packages call it must:
//
//	var must = trial.Must
func Must(t testing.TB, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// FindSystem lets this process, and its children, find ip, nft and their like by their names. A
// plain user's PATH may lack the folders where these are.
func FindSystem() {
	os.Setenv("PATH", os.Getenv("PATH")+":/usr/local/sbin:/usr/sbin:/sbin")
}

// Mount mounts a tmpfs on a folder, until the test ends. options are mount(8)'s, such as "size=16m".
func Mount(t testing.TB, folder, options string) {
	t.Helper()
	Must(t, unix.Mount("tmpfs", folder, "tmpfs", 0, options))
	t.Cleanup(func() {
		if err := unix.Unmount(folder, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// Need ends the test unless all of these programs are in PATH.
func Need(t testing.TB, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			missing(t, name+" is missing: in a clone of Berth `make deps` installs it, as root")
		}
	}
}

// Root ends the test unless it runs as the machine's own root, and not as the root of a user namespace.
func Root(t testing.TB, why string) {
	t.Helper()
	ids, err := os.ReadFile("/proc/self/uid_map") // inside outside length
	if err != nil || os.Geteuid() != 0 || strings.Join(strings.Fields(string(ids)), " ") != "0 0 4294967295" {
		missing(t, "not root, and "+why)
	}
}

// missing skips the test or, if NETTEST_REQUIRED=1 is set, as Berth's CI sets it, fails it.
func missing(t testing.TB, reason string) {
	t.Helper()
	if os.Getenv("NETTEST_REQUIRED") == "1" {
		t.Fatalf("%s, and NETTEST_REQUIRED=1 is set", reason)
	}
	t.Skip(reason)
}
