package helper

import (
	"encoding/binary"
	"errors"
	"math"
	"net"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// connection is the descriptor by which a helper process hears from its daemon: the first of
	// exec.Cmd's ExtraFiles.
	connection = 3

	// largest is the length of the longest message, in bytes.
	largest = 4096

	// taken, in an errno's place, says that the process has received a message.
	taken = syscall.Errno(1 << 31)

	// probe is the number of a message without bytes and without a descriptor, by which the daemon asks
	// whether the process still reads. The answer is taken. The other messages' numbers begin at 1.
	probe = 0

	numberSize = 8
	answerSize = numberSize + 4
)

// able says that this program can be its own helper: its main calls Run.
var able bool

// Run is the whole life of a helper process: if this process is one, Run does not return. A program that
// uses a Helper calls Run before anything else. Otherwise Helpers start no processes.
func Run() {
	able = true
	if os.Args[0] != Name {
		// A helper that cannot end must not keep open what this program has inherited. A kernel that
		// cannot do this (before Linux 5.11) leaves these descriptors to the helper.
		_ = unix.CloseRange(connection, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
		return
	}
	_ = os.WriteFile("/proc/self/comm", []byte(Name), 0) // else ps calls it "exe"
	// The daemon's end is the helper's. Until then a daemon that was told to end still deletes links.
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGPIPE)
	conn, err := connOf(os.NewFile(connection, Name))
	if err != nil {
		os.Exit(1)
	}
	serve(conn)
	os.Exit(0)
}

// serve does what the daemon asks for, until the daemon ends. It waits for no system call: the calls that
// do not end have a thread each.
func serve(conn *net.UnixConn) {
	buf, rights := make([]byte, numberSize+largest), make([]byte, unix.CmsgSpace(4))
	for {
		n, oob, _, _, err := conn.ReadMsgUnix(buf, rights)
		if err != nil {
			return
		}
		if n < numberSize {
			return
		}
		number, message := binary.NativeEndian.Uint64(buf), append([]byte(nil), buf[numberSize:n]...)
		socket, ok := received(rights[:oob])
		if !ok && number != probe {
			return
		}
		if _, err := conn.Write(answer(number, taken)); err != nil {
			return
		}
		if number == probe {
			continue
		}
		go func() {
			defer unix.Close(socket)
			var errno syscall.Errno
			_ = errors.As(write(socket, message), &errno) // else it has succeeded
			_, _ = conn.Write(answer(number, errno))      // if the daemon has ended, so does this process
		}()
	}
}

// received returns the descriptor that came with a message.
func received(rights []byte) (socket int, ok bool) {
	msgs, err := unix.ParseSocketControlMessage(rights)
	if err != nil || len(msgs) != 1 {
		return 0, false
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil || len(fds) != 1 {
		return 0, false
	}
	return fds[0], true
}

// asked returns what the daemon sends: a number, and the message.
func asked(number uint64, message []byte) []byte {
	return append(binary.NativeEndian.AppendUint64(make([]byte, 0, numberSize+len(message)), number), message...)
}

// answer returns what the helper says of the message with a number.
func answer(number uint64, errno syscall.Errno) []byte {
	return binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint64(nil, number), uint32(errno))
}

func parseAnswer(b []byte) (number uint64, errno syscall.Errno, ok bool) {
	if len(b) != answerSize {
		return 0, 0, false
	}
	return binary.NativeEndian.Uint64(b), syscall.Errno(binary.NativeEndian.Uint32(b[numberSize:])), true
}
