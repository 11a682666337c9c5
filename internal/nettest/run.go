package nettest

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/kernel/ns"
)

// Run runs a command, such as "ip link set lo up", inside a Node or Pod; nil means the
// test's own node. It ends the test if the command fails. Blanks separate the command's
// words; a word cannot contain one. If PATH lacks the program, as a plain user's may, Run
// looks for it in /usr/sbin.
func Run(t testing.TB, at *ns.Netns, command string) {
	t.Helper()
	words := strings.Fields(command)
	name := words[0]
	if _, err := exec.LookPath(name); err != nil {
		name = filepath.Join("/usr/sbin", name)
	}
	cmd := exec.Command(name, words[1:]...)
	if at != nil {
		cmd = Command(at, name, words[1:]...)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
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
