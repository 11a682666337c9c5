package nettest

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/kernel/ns"
)

// node says where this process is. Enter writes it, before any test runs.
var node struct {
	entered bool
	host    string // hostID of the network namespace that the tests left
	reason  string // why there is no node; empty inside one
}

// Need ends the test unless it runs inside a node. It skips the test with the reason if no
// node could be made. It fails the test if NETTEST_REQUIRED=1 is set, or if the process is
// in the machine's own network namespace after all.
func Need(t testing.TB) {
	t.Helper()
	if !node.entered {
		t.Fatal("nettest: TestMain has to call nettest.Main or nettest.Enter")
	}
	if node.reason != "" {
		skip(t, node.reason)
	}
	if err := Inside(); err != nil {
		t.Fatalf("nettest: %v", err)
	}
}

// NeedPrograms is Need for tests of eBPF programs, which the kernel takes only from processes in the
// first user namespace. NeedPrograms skips a test that a plain user runs.
func NeedPrograms(t testing.TB) {
	t.Helper()
	Need(t)
	if !Programs(t) {
		t.Skip("nettest: eBPF programs are for root alone, and this is a user namespace")
	}
}

// Programs reports whether this process is in the first user namespace (user_namespaces(7)), in which
// root may load eBPF programs.
func Programs(t testing.TB) bool {
	t.Helper()
	ids, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		t.Fatalf("nettest: %v", err)
	}
	return strings.Join(strings.Fields(string(ids)), " ") == "0 0 4294967295"
}

// skip skips a test with the reason, or fails it where no test may be skipped.
func skip(t testing.TB, reason string) {
	t.Helper()
	if os.Getenv(envRequired) == "1" {
		t.Fatalf("nettest: %s, and %s=1 is set", reason, envRequired)
	}
	t.Skip("nettest: " + reason)
}

// Inside is Need for programs that are no tests: nil inside a node.
func Inside() error {
	if !node.entered {
		return errors.New("the program has not called nettest.Enter")
	}
	if node.reason != "" {
		return errors.New(node.reason)
	}
	self, err := ns.Self()
	if err != nil {
		return err
	}
	defer self.Close()
	if hostID(self.Ref()) == node.host {
		return errors.New("this is the host's own network namespace")
	}
	return nil
}

// hostID returns a namespace's identity in the form of envHost.
func hostID(r ns.Ref) string { return fmt.Sprintf("%d:%d:%d", r.Dev, r.Ino, r.ID) }
