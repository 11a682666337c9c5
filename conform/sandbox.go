package conform

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// stage is the environment variable that says how far Enter has come.
const stage = "CONFORM_STAGE"

// The stages: stageInit is the first process in the new namespaces, which reaps orphans, and stageJudge
// is the process that judges.
const (
	stageInit  = "init"
	stageJudge = "judge"
)

// Enter runs the program again, with the same arguments, in namespaces of its own (among
// them a user namespace, unless the program runs as root), and returns how that run ended. In the
// outer program done is true: the program should exit with code. In the program that runs inside, done
// is false: the program goes on to Run. Nothing that happens inside can be seen outside, the machine's
// files can only be read, and no process outlives the run.
func Enter() (done bool, code int, err error) { return enter(furnish) }

// enter is Enter with another function that makes the mounts.
func enter(furnish func() error) (done bool, code int, err error) {
	switch os.Getenv(stage) {
	case stageJudge:
		return false, 0, nil
	case stageInit:
		if err := furnish(); err != nil {
			return true, 1, err
		}
		code, err := bury(again(stageJudge))
		return true, code, err
	}
	cmd := again(stageInit)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
		Pdeathsig:  syscall.SIGKILL,
	}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	told := make(chan os.Signal, 1)
	signal.Notify(told, os.Interrupt, unix.SIGTERM)
	if err = cmd.Start(); err == nil {
		go tell(cmd.Process, told)
		err = cmd.Wait()
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return true, max(exit.ExitCode(), 1), nil
	}
	if err != nil {
		return true, 1, fmt.Errorf("making namespaces to judge in: %w", err)
	}
	return true, 0, nil
}

// patience is how long the process that judges may take, after a signal, to write its report.
const patience = 10 * time.Second

// tell passes a signal to the first process of a PID namespace, which passes it on to the
// process that judges. If they do not end within patience, or if another signal comes, tell
// kills the first process, and with it all others.
func tell(first *os.Process, told <-chan os.Signal) {
	_ = first.Signal(<-told)
	select {
	case <-told:
	case <-time.After(patience):
	}
	_ = first.Kill()
}

// again returns a command that runs this program with the same arguments, in the stage next.
func again(next string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), stage+"="+next)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return cmd
}

// bury runs a command, and reaps processes that have lost their parents, as the first
// process of a PID namespace has to. It passes the signals SIGINT and SIGTERM on to the command.
func bury(cmd *exec.Cmd) (int, error) {
	told := make(chan os.Signal, 1)
	signal.Notify(told, os.Interrupt, unix.SIGTERM)
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	go func() {
		for s := range told {
			_ = cmd.Process.Signal(s) // an error means that the command has ended
		}
	}()
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 1, fmt.Errorf("waiting: %w", err)
		case pid == cmd.Process.Pid && status.Exited():
			return status.ExitStatus(), nil
		case pid == cmd.Process.Pid && status.Signaled():
			return 128 + int(status.Signal()), nil
		}
	}
}
