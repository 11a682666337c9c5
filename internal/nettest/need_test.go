package nettest

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel/ns"
)

// Need skips with a reason if no network namespace can be made (here: in a user namespace whose limit
// of network namespaces is 0), or if the node would hide something that the tests need.
func TestNeedSkipsWithAReason(t *testing.T) {
	exe, err := os.Executable()
	Must(t, err)
	const script = `echo 0 >/proc/sys/user/max_net_namespaces && exec "$0" "$@"`
	limited := func(env ...string) *exec.Cmd {
		cmd := program(t, "need")
		cmd.Path = "/bin/sh"
		cmd.Args = append([]string{"sh", "-c", script, exe}, cmd.Args[1:]...)
		cmd.Env = append(cmd.Env, env...)
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}},
		}
		return cmd
	}
	below := func(env ...string) *exec.Cmd {
		cmd := program(t, "need")
		cmd.Env = append(append(cmd.Env, "TMPDIR="+netnsDir), env...)
		return cmd
	}
	for _, test := range []struct {
		name string
		cmd  func(env ...string) *exec.Cmd
		says string
	}{
		{"no namespaces", limited, "user.max_*_namespaces"},
		{"hidden by /run", below, "/run/netns lies below /run"},
	} {
		out, code := run(t, test.cmd())
		if code != 0 || !strings.Contains(out, "--- SKIP") || !strings.Contains(out, test.says) {
			t.Errorf("%s: exit %d; want a skip with %q:\n%s", test.name, code, test.says, out)
		}
		out, code = run(t, test.cmd(envRequired+"=1"))
		if code != 1 || !strings.Contains(out, "--- FAIL") || !strings.Contains(out, test.says) {
			t.Errorf("%s, with %s: exit %d; want a failure with %q:\n%s", test.name, envRequired, code, test.says, out)
		}
	}
}

// A process that believes to be inside a node, but is not, must not run a test.
func TestNeedGuardsTheHost(t *testing.T) {
	self, err := ns.Self()
	Must(t, err)
	defer self.Close()
	cmd := program(t, "need")
	cmd.Env = append(cmd.Env, envHost+"="+hostID(self.Ref()), envState+"=ready")
	out, code := run(t, cmd)
	if code != 1 || !strings.Contains(out, "host's own network namespace") {
		t.Errorf("exit %d; want a failure:\n%s", code, out)
	}
}

func TestNeedWantsMain(t *testing.T) {
	Need(t)
	before := node
	defer func() { node = before }()
	node.entered = false
	if r := Record(t, Need); !r.Failed || !strings.Contains(r.Said, "TestMain") {
		t.Errorf("without Main, Need says %q", r.Said)
	}
}

// plainUser makes cmd run as a user without any rights, with a directory for temporary
// files. It returns false in a user namespace, which has no second user; but then a plain
// user runs the tests already.
func plainUser(t *testing.T, cmd *exec.Cmd) bool {
	t.Helper()
	const uid = 54321
	tmp, err := os.MkdirTemp("", "nettest")
	Must(t, err)
	t.Cleanup(func() { os.RemoveAll(tmp) })
	if err := os.Chown(tmp, uid, uid); err != nil {
		return false
	}
	cmd.Env = append(cmd.Env, "TMPDIR="+tmp, "HOME="+tmp)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	return true
}

// Tests find the programs that change networks by their names.
func TestPath(t *testing.T) {
	Need(t)
	if !slices.Contains(filepath.SplitList(os.Getenv("PATH")), "/usr/sbin") {
		t.Errorf("PATH is %s", os.Getenv("PATH"))
	}
}

// Everything works for a plain user too.
func TestPlainUser(t *testing.T) {
	Need(t)
	if os.Getenv(act) != "" {
		return // this process is the plain user's run
	}
	cmd := program(t, "plain", "-test.v", "-test.skip=^TestNeed|^TestMain")
	cmd.Env = append(cmd.Env, envRequired+"=1", "PATH=/usr/bin:/bin") // Debian's for a plain user
	if !plainUser(t, cmd) {
		return
	}
	out, code := run(t, cmd)
	if code != 0 || !strings.Contains(out, "--- PASS: TestSnapshot") || strings.Contains(out, "--- SKIP") {
		t.Errorf("as a plain user: exit %d:\n%s", code, out)
	}
}
