package killer

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// changes are those system calls of Go programs that can change the world. Whether a
// certain call changes the world is decided when the program stops at the call (see call.go).
var changes = map[int]string{
	unix.SYS_WRITE: "write", unix.SYS_PWRITE64: "pwrite", unix.SYS_WRITEV: "writev", unix.SYS_PWRITEV: "pwritev",
	unix.SYS_SENDTO: "sendto", unix.SYS_SENDMSG: "sendmsg", unix.SYS_BIND: "bind",
	unix.SYS_FSYNC: "fsync", unix.SYS_FDATASYNC: "fdatasync", unix.SYS_SYNC_FILE_RANGE: "sync_file_range",
	unix.SYS_OPENAT: "create", unix.SYS_FTRUNCATE: "truncate", unix.SYS_FALLOCATE: "fallocate",
	unix.SYS_RENAMEAT: "rename", unix.SYS_RENAMEAT2: "rename", unix.SYS_LINKAT: "link", unix.SYS_SYMLINKAT: "symlink",
	unix.SYS_UNLINKAT: "unlink", unix.SYS_MKDIRAT: "mkdir", unix.SYS_FCHMOD: "chmod", unix.SYS_FCHMODAT: "chmod",
	unix.SYS_MOUNT: "mount", unix.SYS_UMOUNT2: "umount",
}

// answers are the system calls that fetch the kernel's answers. They change nothing, and
// can only be made to fail.
var answers = map[int]string{unix.SYS_RECVFROM: "recvfrom", unix.SYS_RECVMSG: "recvmsg"}

// Offsets in struct seccomp_data (linux/seccomp.h). Arguments have 8 bytes, whose lower
// half comes first on little-endian machines.
const (
	offNumber  = 0
	offFlags   = 16 + 2*8 // openat's third argument
	created    = unix.O_CREAT
	allowed    = unix.SECCOMP_RET_ALLOW
	stopped    = unix.SECCOMP_RET_TRACE
	seccompNew = unix.SECCOMP_SET_MODE_FILTER
)

// program returns the filter. The filter stops the program at changes and answers, but at openat
// only if the call may create a file.
func program() []unix.SockFilter {
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	ret := func(what uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: what}
	}
	equal := func(k int, skip uint8) unix.SockFilter { // skips instructions unless equal
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(k), Jf: skip}
	}
	prog := []unix.SockFilter{
		load(offNumber),
		equal(unix.SYS_OPENAT, 4),
		load(offFlags),
		{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: created, Jf: 1},
		ret(stopped),
		ret(allowed),
	}
	for _, calls := range []map[int]string{changes, answers} {
		for number := range calls {
			prog = append(prog, equal(number, 1), ret(stopped))
		}
	}
	return append(prog, ret(allowed))
}

// install puts the calling thread, and everything that it starts, under the filter. From then on
// the calls at which the filter stops return ENOSYS if there is no tracer.
func install() error {
	prog := program()
	fprog := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, seccompNew, 0, uintptr(unsafe.Pointer(&fprog))); errno != 0 {
		return fmt.Errorf("installing a filter of system calls: %w", os.NewSyscallError("seccomp", errno))
	}
	return nil
}
