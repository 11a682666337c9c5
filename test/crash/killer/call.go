package killer

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Call is a system call that is about to be made.
type Call struct {
	Name    string // "fdatasync"
	What    string // what the call is about: "ledger.db", "RTM_NEWLINK"
	Netlink bool   // the call is about a netlink socket
	Answer  bool   // the call fetches the kernel's answer, and changes nothing
}

func (c Call) String() string { return c.Name + " " + c.What }

// info is struct ptrace_syscall_info (linux/ptrace.h) at a filter's stop.
type info struct {
	Op   uint8
	_    [3]uint8
	Arch uint32
	IP   uint64
	SP   uint64
	Nr   uint64
	Args [6]uint64
	Data uint32
	_    uint32
}

// look returns the call that a stopped thread is about to make; nil if the call changes
// nothing.
func (t *tracer) look(tid int) (*Call, error) {
	var i info
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_GET_SYSCALL_INFO, uintptr(tid),
		unsafe.Sizeof(i), uintptr(unsafe.Pointer(&i)), 0, 0)
	if errno != 0 {
		return nil, os.NewSyscallError("ptrace", errno)
	}
	nr, a := int(i.Nr), i.Args
	if name, ok := answers[nr]; ok {
		return t.answer(name, a)
	}
	c := &Call{Name: changes[nr]}
	switch nr {
	case unix.SYS_WRITE, unix.SYS_PWRITE64, unix.SYS_WRITEV, unix.SYS_PWRITEV:
		return t.written(c, a)
	case unix.SYS_SENDTO:
		return t.sent(c, int(a[0]), t.read(tid, a[1], a[2]), t.family(tid, a[4], a[5]))
	case unix.SYS_SENDMSG:
		name, body := t.message(tid, a[1])
		return t.sent(c, int(a[0]), body, name)
	case unix.SYS_BIND:
		if t.family(tid, a[1], a[2]) == unix.AF_NETLINK {
			return nil, nil // bind only chooses the program's own port number
		}
		c.What = "socket"
	case unix.SYS_FSYNC, unix.SYS_FDATASYNC, unix.SYS_SYNC_FILE_RANGE, unix.SYS_FTRUNCATE, unix.SYS_FALLOCATE, unix.SYS_FCHMOD:
		c.What = t.file(int(a[0]))
	case unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2, unix.SYS_LINKAT:
		c.What = t.path(tid, a[1]) + " to " + t.path(tid, a[3])
	case unix.SYS_MOUNT, unix.SYS_SYMLINKAT:
		c.What = t.path(tid, a[1])
	case unix.SYS_UMOUNT2:
		c.What = t.path(tid, a[0])
	default: // openat, unlinkat, mkdirat, fchmodat
		c.What = t.path(tid, a[1])
	}
	return c, nil
}

// written returns a call that writes; nil for writes to files of Go's runtime, which change
// nothing, and to standard error, on which nothing depends.
func (t *tracer) written(c *Call, a [6]uint64) (*Call, error) {
	if c.What = t.file(int(a[0])); a[0] == 2 || c.What == "null" || strings.HasPrefix(c.What, "anon_inode") {
		return nil, nil
	}
	return c, nil
}

// file names what a descriptor refers to, without the parts that differ from run to run.
func (t *tracer) file(fd int) string {
	to, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", t.Pid, fd))
	if err != nil {
		return "?"
	}
	if kind, _, ok := strings.Cut(to, ":["); ok {
		return kind
	}
	if name, ok := strings.CutSuffix(to, " (deleted)"); ok {
		to = name
	}
	return plain(to)
}

// path returns the last part of a path in the program's memory.
func (t *tracer) path(tid int, at uint64) string {
	b := t.read(tid, at, 256)
	for i, c := range b {
		if c == 0 {
			return plain(string(b[:i]))
		}
	}
	return "?"
}

// chance matches the random parts of names, such as of temporary files and, in scenarios in
// which each agent has a new instance, of the instance's lock. If a call's name kept random
// parts, scenario.again would look for it in vain.
var chance = regexp.MustCompile(`berth-[a-z2-7]{10}|[0-9a-f]{8,}|[0-9]+`)

// plain returns the last part of a path, without its random parts.
func plain(path string) string { return chance.ReplaceAllString(filepath.Base(path), "") }

// page is the size of a page of memory. From a valid address, the tracer can read everything up to
// the end of the address's page.
const page = 4096

// read reads up to n bytes of the program's memory, and fewer if the memory ends before.
func (t *tracer) read(tid int, at, n uint64) []byte {
	n = min(n, 16*page)
	buf := make([]byte, n)
	for n > 0 {
		local := []unix.Iovec{{Base: &buf[0], Len: n}}
		got, err := unix.ProcessVMReadv(tid, local, []unix.RemoteIovec{{Base: uintptr(at), Len: int(n)}}, 0)
		if err == nil {
			return buf[:got]
		}
		if rest := page - at%page; n > rest {
			n = rest // to the end of the page
			continue
		}
		break
	}
	return nil
}

// family returns the address family of a struct sockaddr; 0 if there is none.
func (t *tracer) family(tid int, at, n uint64) int {
	if at == 0 || n < 2 {
		return 0
	}
	if b := t.read(tid, at, 2); len(b) == 2 {
		return int(binary.NativeEndian.Uint16(b))
	}
	return 0
}

// message reads a struct msghdr, and returns the family of its address and the first part
// of its body.
func (t *tracer) message(tid int, at uint64) (family int, body []byte) {
	head := t.read(tid, at, uint64(unsafe.Sizeof(unix.Msghdr{})))
	word := func(b []byte, i int) uint64 {
		if len(b) < 8*i+8 {
			return 0
		}
		return binary.NativeEndian.Uint64(b[8*i:])
	}
	// msg_name, msg_namelen, msg_iov, msg_iovlen, ... of 8 bytes each, with padding
	family = t.family(tid, word(head, 0), word(head, 1)&0xffffffff)
	if word(head, 3) == 0 {
		return family, nil
	}
	iov := t.read(tid, word(head, 2), 16)
	return family, t.read(tid, word(iov, 0), word(iov, 1))
}
