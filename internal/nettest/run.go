package nettest

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/kernel/ns"
)

// Run runs a command, such as "ip link set lo up", inside a Node or Pod; nil means the
// test's own node. It ends the test if the command fails, and skips it if the machine lacks
// the program (Program). Blanks separate the command's words; a word cannot contain one.
func Run(t testing.TB, at *ns.Netns, command string) {
	t.Helper()
	words := strings.Fields(command)
	name := Program(t, words[0])
	cmd := exec.Command(name, words[1:]...)
	if at != nil {
		cmd = Command(at, name, words[1:]...)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
}

// Program returns the path of a program. If the machine lacks the program, Program skips the test
// with the reason or, if NETTEST_REQUIRED=1 is set, fails the test.
func Program(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		skip(t, name+" is missing: run `make deps` as root")
	}
	return path
}

// Sysctl writes a sysctl, such as "ipv4/tcp_syncookies", inside a Node or Pod; nil means
// the test's own node. The test needs no program for it, and ends if the kernel refuses.
func Sysctl(t testing.TB, at *ns.Netns, name, value string) {
	t.Helper()
	write := func() error { return ns.SetSysctl(name, value) }
	if at != nil {
		inside := write
		write = func() error { return at.Do(inside) }
	}
	if err := write(); err != nil {
		t.Fatal(err)
	}
}
