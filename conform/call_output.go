package conform

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"
)

// outputWait is how long a call waits, after its plugin has ended, for the end of what the plugin prints: a runtime waits as long as
// a process has the pipe, and a daemon that the plugin has started may have it for ever.
const outputWait = time.Second

// maxLate bounds what is read of a pipe that a process still has after outputWait, in bytes.
const maxLate = 1 << 20

// outputs are what a command prints.
type outputs struct{ stdout, stderr *output }

// output is a pipe that a command prints to.
type output struct {
	pipe *os.File
	end  *os.File      // the command's
	read chan struct{} // closed when buf is filled
	buf  bytes.Buffer
}

// startCatching starts a command, and reads what it prints.
func startCatching(cmd *exec.Cmd) (outputs, error) {
	stdout, err := newOutput()
	if err != nil {
		return outputs{}, err
	}
	defer stdout.end.Close()
	stderr, err := newOutput()
	if err != nil {
		return outputs{}, errors.Join(err, stdout.pipe.Close())
	}
	defer stderr.end.Close()
	cmd.Stdout, cmd.Stderr = stdout.end, stderr.end
	if err := cmd.Start(); err != nil {
		return outputs{}, errors.Join(err, stdout.pipe.Close(), stderr.pipe.Close())
	}
	return outputs{stdout, stderr}, nil
}

func newOutput() (*output, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	o := &output{pipe: r, end: w, read: make(chan struct{})}
	go func() {
		defer close(o.read)
		_, _ = io.Copy(&o.buf, r) // until the end, or the deadline that finish sets
	}()
	return o, nil
}

// finish returns what a command that has ended has printed.
func (all outputs) finish() (stdout, stderr []byte, err error) {
	end := time.Now().Add(outputWait)
	stdout, first := all.stdout.finish(end)
	stderr, second := all.stderr.finish(end)
	return stdout, stderr, errors.Join(first, second)
}

// finish reads to the end of the pipe, but waits for it only until the time end. On a busy machine a command may have ended long before anybody
// has read what it printed: what is in the pipe is read, however late it is.
func (o *output) finish(end time.Time) ([]byte, error) {
	defer o.pipe.Close()
	if err := o.pipe.SetReadDeadline(end); err != nil {
		return nil, err
	}
	<-o.read
	if err := o.pipe.SetReadDeadline(time.Time{}); err != nil {
		return nil, err
	}
	conn, err := o.pipe.SyscallConn()
	if err != nil {
		return nil, err
	}
	late := make([]byte, 64<<10)            // what a pipe has at most
	err = conn.Read(func(fd uintptr) bool { // it does not block: the descriptor is the poller's
		for n, all := 1, 0; n > 0 && all < maxLate; all += n {
			if n, _ = unix.Read(int(fd), late); n > 0 {
				o.buf.Write(late[:n])
			}
		}
		return true
	})
	return o.buf.Bytes(), err
}
