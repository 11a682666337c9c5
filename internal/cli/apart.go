package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// A process cannot end while one of its threads is in a system call that no signal ends, as on a
// file system that is frozen, or behind a lock of the kernel's that somebody keeps. So a command
// that looks where such things happen runs in a process of its own, and tells its exit code
// before it ends. The command's caller waits only for that exit code.

// envApart says, in a command's environment, that the command runs in a process of its own, and
// has to tell its exit code on the descriptor told.
const envApart = "BERTH_APART"

// told is the first of exec.Cmd's ExtraFiles.
const told = 3

// apart runs this program's command line in a process of its own, until that process tells its exit code.
func apart(ctx context.Context, args []string) error {
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("making a pipe: %w", err)
	}
	defer r.Close()
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Args[0] = os.Args[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), envApart+"=1")
	cmd.ExtraFiles = []*os.File{w}
	// A child that hangs gets the signal at this process's end. The kernel sends the signal when
	// this thread ends.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err = cmd.Start()
	_ = w.Close()
	if err != nil {
		return fmt.Errorf("starting a process that may hang: %w", err)
	}
	code := make(chan error, 1)
	go func() { code <- answerOf(r, cmd) }()
	select {
	case err := <-code:
		return err
	case <-ctx.Done():
		return exit(1)
	}
}

// answerOf returns what a process tells. A process that ends without telling has crashed.
func answerOf(r io.Reader, cmd *exec.Cmd) error {
	var code [1]byte
	if _, err := io.ReadFull(r, code[:]); err != nil {
		var how *exec.ExitError
		if err := cmd.Wait(); errors.As(err, &how) {
			return exit(max(how.ExitCode(), 1))
		}
		return exit(1)
	}
	if code[0] == 0 {
		return nil
	}
	return exit(code[0])
}

// tell tells the exit code, if this process is one of apart's. Before that, tell closes the outputs:
// their readers wait for the end of the outputs, which would otherwise stay open until this process
// ends, and apart's end kills this process.
func tell(code int) {
	if os.Getenv(envApart) == "" {
		return
	}
	_ = unix.Close(unix.Stdout)
	_ = unix.Close(unix.Stderr)
	_, _ = unix.Write(told, []byte{byte(code)}) // nobody reads the code if apart has ended
}
