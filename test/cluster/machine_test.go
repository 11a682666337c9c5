package cluster

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
)

// machine is a computer as far as Kubernetes can see: mount, PID, UTS and time namespaces, a network namespace, and a
// folder as its disk. Its first process lives until the machine's power is cut, or the test ends; with it the kernel ends all
// others.
type machine struct {
	t     testing.TB
	name  string
	disk  string    // has the machine's etc, opt, run and var
	net   *ns.Netns // nil: the test's own
	boots int       // how many times it has been started
	first *exec.Cmd // its first process
	alive io.Closer // the first process ends when the test lets go of it, however the test ends
}

// folders are those of a machine's own. The others are the test's.
var folders = []string{"etc", "opt", "run", "var"}

// startMachine starts a machine with a new disk.
func startMachine(t testing.TB, name string, at *ns.Netns) *machine {
	t.Helper()
	m := &machine{t: t, name: name, disk: t.TempDir(), net: at}
	for _, dir := range append(folders, "var/lib", "var/log", "var/tmp", "opt/cni/bin") {
		must(t, os.MkdirAll(filepath.Join(m.disk, dir), 0o755))
	}
	must(t, os.Symlink("/run", filepath.Join(m.disk, "var/run")))
	m.write("etc/passwd", "root:x:0:0:root:/root:/bin/sh\n")
	m.write("etc/group", "root:x:0:\n")
	m.write("etc/hosts", "127.0.0.1 localhost\n::1 localhost\n")
	m.write("etc/resolv.conf", "")
	m.write("etc/os-release", "ID=test\nPRETTY_NAME=\"a machine of a test\"\n")
	m.write("etc/machine-id", fmt.Sprintf("%032x\n", name))

	m.boot()
	t.Cleanup(m.powerOff)
	return m
}

// enter starts a command in the machine's namespaces. Only a program of one thread can enter a time namespace: nsenter, which
// then becomes the command.
func (m *machine) enter(cmd *exec.Cmd) error {
	nsenter := found(m.t, "nsenter")
	cmd.Args = append([]string{nsenter, "--no-fork", "--time=/proc/1/ns/time", "--", cmd.Path}, cmd.Args[1:]...)
	cmd.Path = nsenter
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with this goroutine
		started <- func() error {
			at, err := unix.PidfdOpen(m.first.Process.Pid, 0)
			if err != nil {
				return os.NewSyscallError("pidfd_open", err)
			}
			defer unix.Close(at)
			if err := unix.Unshare(unix.CLONE_FS); err != nil { // or setns refuses a mount namespace
				return os.NewSyscallError("unshare", err)
			}
			if err := unix.Setns(at, unix.CLONE_NEWNS|unix.CLONE_NEWPID|unix.CLONE_NEWUTS|unix.CLONE_NEWNET); err != nil {
				return os.NewSyscallError("setns", err)
			}
			return cmd.Start()
		}()
	}()
	return <-started
}

// run runs a program on the machine, and returns what it prints on standard output.
func (m *machine) run(program string, args ...string) (string, error) {
	var out, errs bytes.Buffer
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := m.enter(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return out.String(), fmt.Errorf("%s: %s %s: %w\n%s%s", m.name, filepath.Base(program), strings.Join(args, " "), err, out.String(), errs.String())
	}
	return out.String(), nil
}

// mustRun is run of a program that may not fail.
func (m *machine) mustRun(program string, args ...string) string {
	m.t.Helper()
	out, err := m.run(program, args...)
	must(m.t, err)
	return out
}

// write writes a file of the machine's disk.
func (m *machine) write(name, content string) {
	m.t.Helper()
	path := filepath.Join(m.disk, name)
	must(m.t, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o600))
}

// daemon is a program that runs on a machine until it is killed.
type daemon struct {
	*machine
	program string
	args    []string
	kept    string // folder for its log, after the test
	cmd     *exec.Cmd
	ended   chan struct{} // closed when the process has ended
}

// daemon starts a daemon, which writes into /var/log/NAME.log.
func (m *machine) daemon(program string, args ...string) *daemon {
	m.t.Helper()
	d := &daemon{machine: m, program: program, args: args, kept: m.t.ArtifactDir()}
	d.start()
	m.t.Cleanup(func() {
		d.kill()
		d.keepLog()
		if m.t.Failed() {
			m.t.Logf("last words of %s's %s:\n%s", m.name, filepath.Base(program), d.lastWords())
		}
	})
	return d
}

func (d *daemon) log() string {
	return filepath.Join(d.disk, "var/log", filepath.Base(d.program)+".log")
}

// keepLog copies the daemon's log to where `go test -artifacts` keeps it.
func (d *daemon) keepLog() {
	raw, err := os.ReadFile(d.log())
	if err == nil {
		err = os.WriteFile(filepath.Join(d.kept, d.name+"-"+filepath.Base(d.log())), raw, 0o644)
	}
	if err != nil {
		d.t.Error(err)
	}
}

// patience is how long programs that ask the API server wait until they take a connection for dead that says nothing: 10 s. By
// client-go's defaults these are 45 s.
var patience = []string{"HTTP2_READ_IDLE_TIMEOUT_SECONDS=5", "HTTP2_PING_TIMEOUT_SECONDS=5"}

func (d *daemon) start() {
	d.t.Helper()
	log, err := os.OpenFile(d.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	must(d.t, err)
	defer log.Close()
	cmd, ended := exec.Command(d.program, d.args...), make(chan struct{})
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), patience...)
	must(d.t, d.enter(cmd))
	go func() { cmd.Wait(); close(ended) }()
	d.cmd, d.ended = cmd, ended
}

// kill sends SIGKILL. The process is gone when kill returns.
func (d *daemon) kill() {
	d.cmd.Process.Kill()
	<-d.ended
}

// until waits until a daemon does what it is there for. A daemon that has ended fails the test at once.
func (d *daemon) until(what string, cond func() bool) {
	d.t.Helper()
	nettest.Eventually(d.t, what, func() bool {
		select {
		case <-d.ended:
			d.t.Fatalf("waiting for %s: %s ended: %s", what, filepath.Base(d.program), d.cmd.ProcessState)
		default:
		}
		return cond()
	})
}

// words returns all of the daemon's log.
func (d *daemon) words() string {
	raw, _ := os.ReadFile(d.log())
	return string(raw)
}

// lastWords returns the end of the daemon's log.
func (d *daemon) lastWords() string {
	lines := strings.Split(strings.TrimSpace(d.words()), "\n")
	return strings.Join(lines[max(0, len(lines)-15):], "\n")
}
