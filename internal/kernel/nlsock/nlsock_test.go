package nlsock

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

var must = nettest.Must

// other is a socket of somebody else in the same network namespace.
func other(t *testing.T) (fd int) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	must(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	must(t, unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}))
	return fd
}

// write writes a header of zeros, which is no message, to a socket, without waiting for room.
func write(fd int, to uint32) error {
	return unix.Sendto(fd, make([]byte, unix.SizeofNlMsghdr), unix.MSG_DONTWAIT, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: to})
}

// Others who have CAP_NET_ADMIN in the network namespace, as a pod has in its own, cannot write
// to a socket of Berth's there, and the kernel answers on that socket.
func TestOthersCannotWrite(t *testing.T) {
	nettest.Need(t)
	s, err := Open(unix.NETLINK_ROUTE)
	must(t, err)
	defer s.Close()
	fd := other(t)
	if err := write(fd, s.Port()); err != unix.ECONNREFUSED {
		t.Errorf("another's message: %v", err)
	}
	must(t, s.Send([]byte{unix.SizeofNlMsghdr, 0, 0, 0, unix.NLMSG_NOOP, 0, unix.NLM_F_REQUEST | unix.NLM_F_ACK, 0, 1, 0, 0, 0, 0, 0, 0, 0}))
	got, err := s.Receive()
	if err != nil || got[4] != unix.NLMSG_ERROR {
		t.Errorf("the kernel's answer: %v, %v", got, err)
	}
}

// Receive ends with its context: if nobody says anything, and if others write without end to a
// socket that nobody has connected.
func TestReceiveEndsWithItsContext(t *testing.T) {
	nettest.Need(t)
	for name, test := range map[string]struct {
		most  time.Duration
		flood bool
	}{
		"ended":         {0, false},
		"nobody speaks": {50 * time.Millisecond, false},
		"others speak":  {50 * time.Millisecond, true},
	} {
		t.Run(name, func(t *testing.T) {
			fd := other(t)
			s := &Socket{fd: fd, buf: make([]byte, BufferSize)}
			if test.flood {
				name, err := unix.Getsockname(fd)
				must(t, err)
				flood(t, name.(*unix.SockaddrNetlink).Pid)
			}
			ctx, cancel := context.WithTimeout(t.Context(), test.most)
			defer cancel()
			s.Until(ctx)
			if _, err := s.Receive(); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("it says %v", err)
			}
		})
	}
}

// flood writes to a port until the test ends.
func flood(t *testing.T, port uint32) {
	t.Helper()
	fd := other(t)
	nettest.Meanwhile(t, func() { _ = write(fd, port) }) // the socket may have no room
}

// A closed socket's buffer serves later sockets.
func TestBuffersServeAgain(t *testing.T) {
	nettest.Need(t)
	const sockets = 200
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range sockets {
		s, err := Open(unix.NETLINK_ROUTE)
		must(t, err)
		s.Close()
	}
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > sockets*BufferSize/2 { // with the race detector a pool loses a quarter of its buffers
		t.Errorf("%d sockets allocated %d bytes", sockets, got)
	}
}
