package cluster

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// The Args[0] with which this program begins a machine's clock, and is the machine's first process.
const (
	machineClock = "cluster-clock"
	machineInit  = "cluster-init"
)

// bootID is the file of a machine's disk that has the id of the machine's boot.
const bootID = "boot_id"

// boot starts the machine's first process, in namespaces that are new. So are the boot's id and the clock.
func (m *machine) boot() {
	m.t.Helper()
	m.boots++
	m.write(bootID, fmt.Sprintf("%08d-0000-4000-8000-%012x\n", m.boots, m.name))
	m.first = &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{machineClock, m.name, m.disk}, Stderr: os.Stderr,
		SysProcAttr: &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS},
	}
	var err error
	m.alive, err = m.first.StdinPipe()
	must(m.t, err)
	said, err := m.first.StdoutPipe()
	must(m.t, err)
	must(m.t, nettest.DoIn(m.net, m.first.Start))
	if ready, _ := io.ReadAll(said); string(ready) != "ready" {
		m.t.Fatalf("the first process of %s ended: %q", m.name, ready)
	}
}

// powerOff ends all that runs on the machine, at once. Nothing runs any more when it returns. The containers' cgroups are of the
// kernel of the test, which goes on: each would have the cadvisor of every kubelet that starts later wait for 3 s.
func (m *machine) powerOff() {
	m.first.Process.Kill()
	m.first.Wait()
	m.alive.Close()
	containers, err := filepath.Glob(filepath.Join(m.disk, "run/containerd/io.containerd.runtime.v2.task/k8s.io/*"))
	must(m.t, err)
	for _, c := range containers {
		programs.RemoveCgroup(m.t, "k8s.io/"+filepath.Base(c))
	}
}

// bootAge is what a machine's clock says when its first process begins, in seconds.
const bootAge = 10

// init keeps main on the process's first thread: that thread's namespaces are the process's in /proc (beginClock).
func init() {
	if os.Args[0] == machineClock {
		runtime.LockOSThread()
	}
}

// beginClock begins a machine's clock, and becomes the machine's first process. It returns only if that fails.
func beginClock(name, disk string) error {
	if err := unix.Unshare(unix.CLONE_NEWTIME); err != nil { // exec enters it
		return os.NewSyscallError("unshare", err)
	}
	offsets := ""
	for clock, id := range map[string]int32{"monotonic": unix.CLOCK_MONOTONIC, "boottime": unix.CLOCK_BOOTTIME} {
		var now unix.Timespec
		if err := unix.ClockGettime(id, &now); err != nil {
			return os.NewSyscallError("clock_gettime", err)
		}
		offsets += fmt.Sprintf("%s %d 0\n", clock, bootAge-now.Sec)
	}
	if err := os.WriteFile("/proc/self/timens_offsets", []byte(offsets), 0); err != nil {
		return err
	}
	return os.NewSyscallError("exec", syscall.Exec("/proc/self/exe", []string{machineInit, name, disk}, os.Environ()))
}

// initMachine is a machine's first process: it makes the new namespaces the machine's, and reaps orphans until its
// standard input ends.
func initMachine(name, disk string) int {
	if err := furnish(name, disk); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		return 1
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	os.Stdout.WriteString("ready")
	os.Stdout.Close()
	go func() {
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	for range ended {
		for pid := 1; pid > 0; {
			pid, _ = unix.Wait4(-1, nil, unix.WNOHANG, nil)
		}
	}
	return 0
}

func furnish(name, disk string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil { // mount --make-rprivate /
		return fmt.Errorf("making mounts private: %w", err)
	}
	for _, dir := range folders { // mount --bind DISK/DIR /DIR
		if err := unix.Mount(filepath.Join(disk, dir), "/"+dir, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mounting /%s: %w", dir, err)
		}
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mounting /proc: %w", err)
	}
	const id = "/proc/sys/kernel/random/boot_id"
	if err := unix.Mount(filepath.Join(disk, bootID), id, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mounting %s: %w", id, err)
	}
	if err := nettest.FreshSysfs(); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil { // as systemd does, for mountPropagation
		return fmt.Errorf("making mounts shared: %w", err)
	}
	return os.NewSyscallError("sethostname", unix.Sethostname([]byte(name)))
}
