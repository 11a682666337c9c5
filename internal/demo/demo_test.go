package demo

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/berth-net/berth/conform/oracle"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// The tests run in the namespaces in which they are started, because the demo itself has to
// make namespaces. They only look at the machine's network.
func TestMain(m *testing.M) { os.Exit(programs.Outside(m)) }

// demo returns the command that `make demo` runs, with the programs in a folder.
func demo(dir string) *exec.Cmd { return exec.Command(filepath.Join(dir, "berth"), "demo") }

// need skips the test if the kernel gives out no namespaces.
func need(t *testing.T, out []byte) {
	t.Helper()
	if strings.Contains(string(out), "making fresh namespaces for the demo: ") {
		if os.Getenv("NETTEST_REQUIRED") == "1" {
			t.Fatalf("NETTEST_REQUIRED=1 is set, and %s", out)
		}
		t.Skipf("%s", out)
	}
}

func TestDemo(t *testing.T) {
	user := os.Geteuid() == 0
	t.Run("as it is", func(t *testing.T) { testDemo(t, nil) })
	t.Run("as a plain user", func(t *testing.T) {
		if !user {
			t.Skip("the other test is one already")
		}
		testDemo(t, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}})
	})
}

// testDemo runs the demo to its good end, and checks that what it says is true.
func testDemo(t *testing.T, as *syscall.SysProcAttr) {
	before := machine(t)
	tmp := t.TempDir()
	cmd := demo(programs.Own(t))
	cmd.SysProcAttr = as
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	out, err := cmd.CombinedOutput()
	need(t, out)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
	lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	if last := lines[len(lines)-1]; last != "residue: 0" {
		t.Errorf("the last line is %q", last)
	}
	for _, want := range []string{
		`20 pods attached`, `380 of 380 inet echos`, `380 of 380 inet6 echos`, `SIGKILL`, `[1-9]\d* DELs found no agent`,
		`none of 12 detached pods answers`, `serves again after .*, and carried out the [1-9]\d* queued deletions first`, `ADD +20 `, `DEL +20 `,
	} {
		if !regexp.MustCompile(want).Match(out) {
			t.Errorf("nothing of %q", want)
		}
	}
	if files, err := os.ReadDir(tmp); err != nil || len(files) > 0 {
		t.Errorf("in TMPDIR: %v, %v", files, err)
	}
	if after := machine(t); before != after {
		t.Errorf("the machine was\n%s\nand is\n%s", before, after)
	}
	if left := processes(t); len(left) > 0 {
		t.Errorf("still running: %v", left)
	}
}

// machine lists what the demo must not touch.
func machine(t *testing.T) string {
	t.Helper()
	all, err := oracle.LookAt("link", "route") // a plain user may not list the machine's nftables
	nettest.Must(t, err)
	mounts, err := os.ReadFile("/proc/self/mounts")
	nettest.Must(t, err)
	return fmt.Sprintf("%s\ndemo's mounts: %d", all, strings.Count(string(mounts), "berth-demo"))
}

// processes returns the processes that run a program of Berth's.
func processes(t *testing.T) (running []string) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/exe")
	nettest.Must(t, err)
	for _, exe := range all {
		if target, err := os.Readlink(exe); err == nil && strings.HasPrefix(target, programs.Own(t)+"/") {
			running = append(running, exe+" "+target)
		}
	}
	return running
}

// The demo sees what is left behind: here, what the agent itself holds, because nobody tells
// it to give that back.
func TestResidue(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"berth", "berth-cni"} {
		nettest.Must(t, os.Link(filepath.Join(programs.Own(t), name), filepath.Join(dir, name)))
	}
	script := fmt.Sprintf("#!/bin/sh\ncase \"$*\" in *--remove*) exit 0;; esac\nexec %s/berthd \"$@\"\n", programs.Own(t))
	nettest.Must(t, os.WriteFile(filepath.Join(dir, "berthd"), []byte(script), 0o755))
	out, err := demo(dir).CombinedOutput()
	need(t, out)
	if err == nil {
		t.Error("the exit code is 0")
	}
	for _, want := range []string{`\n  route inet unreachable 10\.88\.0\.0/24 `, `\n  route inet6 unreachable fd00:88::/112 `, `\n  nftables table berth-`, `\n  route inet local 169\.254\.255\.1/32 `, `\n  route inet6 local 100::1/128 `, `\nresidue: 5\n$`} {
		if !regexp.MustCompile(want).Match(out) {
			t.Errorf("nothing of %q", want)
		}
	}
	if t.Failed() {
		t.Logf("%s", out)
	}
}

// The inner process touches nothing in namespaces that are not fresh.
func TestGuard(t *testing.T) {
	same := func(name string) *os.File {
		f, err := os.Open("/proc/self/ns/" + name)
		nettest.Must(t, err)
		t.Cleanup(func() { f.Close() })
		return f
	}
	null, err := os.Open(os.DevNull)
	nettest.Must(t, err)
	defer null.Close()
	for _, c := range []struct {
		files []*os.File
		why   string
	}{
		{[]*os.File{null, null}, "file 3 is not a namespace"},
		{[]*os.File{same("net"), same("mnt")}, "the net namespace is the machine's"},
		{[]*os.File{same("mnt"), same("mnt")}, "the mnt namespace is the machine's"},
	} {
		cmd := demo(programs.Own(t))
		cmd.Env = append(os.Environ(), envInside+"=1")
		cmd.ExtraFiles = c.files
		out, err := cmd.CombinedOutput()
		want := "berth: the demo does not run in namespaces of its own, and so it touches nothing: " + c.why + "; unset " + envInside + "\n"
		if err == nil || string(out) != want {
			t.Errorf("%v: %s", err, out)
		}
	}
}

// Without its programs the demo says what to do.
func TestPrograms(t *testing.T) {
	dir := t.TempDir()
	nettest.Must(t, os.Link(filepath.Join(programs.Own(t), "berth"), filepath.Join(dir, "berth")))
	out, err := demo(dir).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "the demo runs berthd, which has to lie beside") {
		t.Errorf("%v: %s", err, out)
	}
}
