package runner

import (
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// errTail is how many bytes of a plugin's stderr the runner keeps: the last ones, which say why it ended.
const errTail = 16 << 10

// head keeps the beginning of what is written, and counts all of it.
type head struct {
	limit   int
	kept    []byte
	written int64
}

func (h *head) Write(p []byte) (int, error) {
	h.written += int64(len(p))
	h.kept = append(h.kept, p[:min(len(p), h.limit-len(h.kept))]...)
	return len(p), nil
}

// tail keeps the end of what is written.
type tail struct {
	limit int
	kept  []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.kept = append(t.kept, p[max(0, len(p)-t.limit):]...)
	if over := len(t.kept) - t.limit; over > 0 {
		t.kept = append(t.kept[:0], t.kept[over:]...)
	}
	return len(p), nil
}

// pipe returns the two ends of a pipe: a process has one, and reads or writes it as it does a file; the
// runner has the other, which may have deadlines. ours says which of the ends, 0 to read and 1 to write,
// is the runner's.
func pipe(ours int) (runner *os.File, process int, err error) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return nil, 0, os.NewSyscallError("pipe2", err)
	}
	if err := unix.SetNonblock(ends[ours], true); err != nil {
		return nil, 0, errors.Join(os.NewSyscallError("fcntl", err), unix.Close(ends[0]), unix.Close(ends[1]))
	}
	return os.NewFile(uintptr(ends[ours]), "pipe"), ends[1-ours], nil
}

// streams are a plugin's stdin, stdout and stderr, as the runner has them.
type streams struct {
	in, out, err *os.File
	theirs       [3]int // the process's ends
	stdout       head
	stderr       tail
	done         chan struct{} // closed when stdout and stderr have ended
}

func newStreams(output int) (_ *streams, err error) {
	s := &streams{stdout: head{limit: output}, stderr: tail{limit: errTail}, done: make(chan struct{})}
	for i, end := range []**os.File{&s.in, &s.out, &s.err} {
		ours := 0
		if end == &s.in {
			ours = 1
		}
		if *end, s.theirs[i], err = pipe(ours); err != nil {
			for j := range i {
				unix.Close(s.theirs[j])
			}
			s.close()
			return nil, err
		}
	}
	return s, nil
}

// started closes the process's ends, writes stdin and reads the rest, without waiting. A plugin that does
// not read its stdin is no error.
func (s *streams) started(stdin []byte) {
	for _, fd := range s.theirs {
		unix.Close(fd)
	}
	go func() {
		_, _ = s.in.Write(stdin)
		_ = s.in.Close()
	}()
	errEnded := make(chan struct{})
	go func() {
		defer close(errEnded)
		_, _ = io.Copy(&s.stderr, s.err)
	}()
	go func() {
		defer close(s.done)
		_, _ = io.Copy(&s.stdout, s.out)
		<-errEnded
	}()
}

// close closes the runner's ends, which ends all that started has begun.
func (s *streams) close() {
	for _, f := range []*os.File{s.in, s.out, s.err} {
		if f != nil {
			_ = f.Close()
		}
	}
}
