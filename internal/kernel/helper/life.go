package helper

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// farewell is how long leave waits for a process that has nothing to do any more.
const farewell = time.Second

// life is one helper process, seen by its daemon.
type life struct {
	cmd   *exec.Cmd
	conn  *net.UnixConn
	once  sync.Once
	ended chan struct{} // closed when nobody hears the process any more
	dead  chan struct{} // closed when the process has ended

	mu     sync.Mutex
	last   uint64
	calls  map[uint64]*call // by their numbers
	asking *time.Timer      // runs ask, while calls wait
	probes uint64           // how many the process was sent
	heard  uint64           // how many of them it has answered
}

// call is a message that the process was sent.
type call struct {
	taken  chan struct{}      // closed when the process has received the message
	result chan syscall.Errno // what its system call has returned; 0: success
}

// start starts a process.
func start() (*life, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("making sockets for the helper process: %w", err)
	}
	theirs := os.NewFile(uintptr(pair[1]), Name)
	defer theirs.Close()
	conn, err := connOf(os.NewFile(uintptr(pair[0]), Name))
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Args[0] = Name
	cmd.Dir = "/"
	cmd.ExtraFiles = []*os.File{theirs}
	if err := cmd.Start(); err != nil {
		conn.Close()
		return nil, fmt.Errorf("starting the helper process: %w", err)
	}
	l := &life{cmd: cmd, conn: conn, ended: make(chan struct{}), dead: make(chan struct{}), calls: map[uint64]*call{}}
	go l.hear()
	go func() { _ = cmd.Wait(); close(l.dead) }() // nobody needs to know how it ended
	return l, nil
}

// connOf makes a connection of a file, which it closes.
func connOf(f *os.File) (*net.UnixConn, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("using the helper process's socket: %w", err)
	}
	return c.(*net.UnixConn), nil
}

// send has the process write a message to a socket, and returns when that is done.
func (l *life) send(socket int, message []byte) error {
	c := &call{taken: make(chan struct{}), result: make(chan syscall.Errno, 1)}
	number := l.enter(c)
	defer l.drop(number)
	late := time.NewTimer(patience)
	defer late.Stop()
	_ = l.conn.SetWriteDeadline(time.Now().Add(patience)) // a connection that is closed fails below
	if _, _, err := l.conn.WriteMsgUnix(asked(number, message), unix.UnixRights(socket), nil); err != nil {
		return fmt.Errorf("%w: %w", errUntaken, err)
	}
	select {
	case <-c.taken:
	case <-late.C:
		return errUntaken
	case <-l.ended:
		select {
		case <-c.taken: // the last that the process said
		default:
			return errUntaken
		}
	}
	var errno syscall.Errno
	select {
	case errno = <-c.result:
	case <-l.ended:
		select {
		case errno = <-c.result: // the last that the process said
		default:
			return &lostError{l.dead}
		}
	}
	if errno != 0 {
		return os.NewSyscallError("write", errno)
	}
	return nil
}

// enter gives a call its number. While calls wait, the process is asked whether it still reads.
func (l *life) enter(c *call) (number uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last++
	l.calls[l.last] = c
	if len(l.calls) == 1 {
		l.asking = time.AfterFunc(patience, l.ask)
	}
	return l.last
}

// drop forgets a call.
func (l *life) drop(number uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.calls, number)
	if len(l.calls) == 0 {
		l.asking.Stop()
	}
}

// ask sends the process a probe every patience while calls wait, and ends the process if it has not
// answered the last one. The kernel may take any time for a call, but a process that has been stopped since
// it took the call looks the same: only the probe tells them apart.
func (l *life) ask() {
	l.mu.Lock()
	waits, silent := len(l.calls) > 0, l.heard < l.probes
	if waits && !silent {
		l.probes++
		l.asking.Reset(patience)
	}
	l.mu.Unlock()
	switch {
	case !waits:
		return
	case silent:
		l.end()
		return
	}
	// The socket of a stopped process may be full. No lock is held here, so that the next ask comes
	// meanwhile and ends this write. The deadline is for the case that all calls have returned by then;
	// without it, the one that the last send has left would count.
	_ = l.conn.SetWriteDeadline(time.Now().Add(patience))
	if _, err := l.conn.Write(asked(probe, nil)); err != nil {
		l.end()
	}
}

// hear reads what the process says, until the process ends.
func (l *life) hear() {
	defer l.end()
	buf := make([]byte, answerSize)
	for {
		n, err := l.conn.Read(buf)
		if err != nil {
			return
		}
		number, errno, ok := parseAnswer(buf[:n])
		if !ok {
			return
		}
		l.mu.Lock()
		c := l.calls[number]
		if number == probe {
			l.heard++
		}
		l.mu.Unlock()
		switch {
		case c == nil: // a probe, or a call whose caller has given up
		case errno == taken:
			close(c.taken)
		default:
			c.result <- errno
		}
	}
}

// over reports whether nobody hears the process any more.
func (l *life) over() bool {
	select {
	case <-l.ended:
		return true
	default:
		return false
	}
}

// end kills the process, and has all calls return. It does not wait.
func (l *life) end() {
	l.once.Do(func() {
		close(l.ended)
		l.conn.Close()
		_ = l.cmd.Process.Kill() // an error says that it has ended
	})
}

// leave tells the process that nothing more comes, and waits until the process has ended or the kernel
// plainly keeps it from ending.
func (l *life) leave() {
	l.conn.Close()
	select {
	case <-l.dead:
	case <-time.After(farewell):
	}
	l.end()
}
