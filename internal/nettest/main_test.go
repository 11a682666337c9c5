package nettest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel/ns"
)

func TestMain(m *testing.M) { Main(m) }

// act says what TestInner does, in a test program that a test starts.
const act = "NETTEST_TEST_ACT"

// program returns a command that starts this test program as if on a machine: the started program
// has to leave this node for a node of its own.
func program(t *testing.T, inner string, args ...string) *exec.Cmd {
	t.Helper()
	Need(t)
	cmd := exec.Command("/proc/self/exe", args...)
	if len(args) == 0 {
		cmd.Args = append(cmd.Args, "-test.v", "-test.run=^TestInner$")
	}
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "NETTEST_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, act+"="+inner)
	return cmd
}

// TestInner is the other side of program.
func TestInner(t *testing.T) {
	switch os.Getenv(act) {
	case "":
		return
	case "need":
		Need(t)
		self, err := ns.Self()
		Must(t, err)
		fmt.Println("inside", hostID(self.Ref()))
	case "fail":
		t.Fail()
	case "exit":
		os.Exit(7)
	case "kill":
		unix.Kill(os.Getpid(), unix.SIGKILL)
	case "files":
		for fd := 3; fd < 13; fd++ {
			if fd == leftOut { // Go may use this descriptor
				continue
			}
			text, err := io.ReadAll(os.NewFile(uintptr(fd), "inherited"))
			fmt.Printf("%d %s %v\n", fd, text, err)
		}
	case "hang":
		fmt.Println("pid", os.Getpid(), Pod(t).Ref().Path)
		// The program waits in a system call. If all goroutines slept, as in select {}, Go's runtime would
		// end the program as a deadlock, and hang if SIGQUIT came in the same moment.
		for {
			_ = unix.Pause()
		}
	}
}

// run returns a program's output and exit code.
func run(t *testing.T, cmd *exec.Cmd) (string, int) {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

func TestMainLeavesTheHost(t *testing.T) {
	out, code := run(t, program(t, "need"))
	self, err := ns.Self()
	Must(t, err)
	if code != 0 || !strings.Contains(out, "inside ") || strings.Contains(out, "inside "+hostID(self.Ref())) {
		t.Errorf("exit %d; want a namespace other than %s:\n%s", code, hostID(self.Ref()), out)
	}
}

func TestMainPassesTheExitCodeOn(t *testing.T) {
	for inner, want := range map[string]int{"need": 0, "fail": 1, "exit": 7, "kill": 128 + 9} {
		if out, code := run(t, program(t, inner)); code != want {
			t.Errorf("%s: exit %d, not %d:\n%s", inner, code, want, out)
		}
	}
	if out, code := run(t, program(t, "need", "-test.nonsense")); code != 2 {
		t.Errorf("a bad flag: exit %d, not 2:\n%s", code, out)
	}
}

func TestMainPassesFilesOn(t *testing.T) {
	cmd := program(t, "files")
	for i := range 10 { // beyond 9, since numbers and their texts sort differently then
		r, w, err := os.Pipe()
		Must(t, err)
		fmt.Fprintf(w, "pipe%d", i)
		w.Close()
		if 3+i == leftOut {
			cmd.ExtraFiles = append(cmd.ExtraFiles, nil)
			continue
		}
		cmd.ExtraFiles = append(cmd.ExtraFiles, r)
	}
	out, code := run(t, cmd)
	for i := range 10 {
		want := fmt.Sprintf("%d pipe%d <nil>\n", 3+i, i)
		if 3+i != leftOut && (code != 0 || !strings.Contains(out, want)) {
			t.Errorf("exit %d, without %q:\n%s", code, want, out)
		}
	}
}

// leftOut is a descriptor that is not passed on, between descriptors that are.
const leftOut = 7

func TestMainFuzzes(t *testing.T) {
	out, code := run(t, program(t, "", "-test.run=^$", "-test.fuzz=^FuzzInner$", "-test.fuzztime=50x",
		"-test.parallel=2", "-test.fuzzcachedir="+t.TempDir()))
	if code != 0 || !strings.Contains(out, "PASS") {
		t.Errorf("exit %d:\n%s", code, out)
	}
}

// Fuzz workers are inside a node as well.
func FuzzInner(f *testing.F) {
	f.Add([]byte("seed"))
	f.Fuzz(func(t *testing.T, _ []byte) { Pod(t) })
}

func TestMainDiesAsAWhole(t *testing.T) {
	for _, test := range []struct {
		plain  bool // user
		signal syscall.Signal
		says   string
		code   int
	}{
		{false, unix.SIGKILL, "", -1},
		{true, unix.SIGKILL, "", -1},
		{false, unix.SIGQUIT, "SIGQUIT: quit", 2}, // as go test asks for stacks
		{false, unix.SIGTERM, "", 128 + 15},
	} {
		cmd := program(t, "hang", "-test.run=^TestInner$")
		if test.plain && !plainUser(t, cmd) {
			continue
		}
		stdout, err := cmd.StdoutPipe()
		Must(t, err)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		cmd.WaitDelay = Deadline / 6 // in case a process survives the program
		Must(t, cmd.Start())
		defer cmd.Process.Kill()
		var pid int
		var pod string
		if _, err := fmt.Fscanf(bufio.NewReader(stdout), "pid %d %s\n", &pid, &pod); err != nil {
			t.Fatalf("reading from the tests: %v\n%s", err, stderr.String())
		}
		defer unix.Kill(pid, unix.SIGKILL)
		if pid == cmd.Process.Pid {
			t.Fatal("the tests run in the process that was started")
		}
		if _, err := os.Stat(pod); err == nil {
			t.Errorf("its pod %s is seen outside", pod)
		}
		cmd.Process.Signal(test.signal)
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		select {
		case <-ended:
		case <-time.After(Deadline):
			t.Fatalf("%v: the program (plain user: %t) does not end:\n%s%sstderr:\n%s", test.signal, test.plain,
				threads(cmd.Process.Pid), threads(pid), stderr.String())
		}
		if code := cmd.ProcessState.ExitCode(); code != test.code || !strings.Contains(stderr.String(), test.says) {
			t.Errorf("%v: exit %d, not %d with %q:\n%s", test.signal, code, test.code, test.says, stderr.String())
		}
		Eventually(t, "the tests' end", func() bool { return unix.Kill(pid, 0) == unix.ESRCH })
	}
}

// threads says what the threads of a process are doing.
func threads(pid int) string {
	var says strings.Builder
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	fmt.Fprintf(&says, "process %d has %d threads\n", pid, len(tasks))
	for _, task := range tasks {
		for _, what := range []string{"stat", "wchan", "syscall"} {
			raw, _ := os.ReadFile(filepath.Join(task, what))
			fmt.Fprintf(&says, "  %s: %s\n", what, strings.TrimSpace(string(raw)))
		}
	}
	return says.String()
}
