package hostile

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// confined is the name under which this program becomes a berthd that systemd's
// filters confine, as deploy/berthd.service says them.
const confined = "berthd"

// How confine is told what to do.
const (
	envReal     = "HOSTILE_BERTHD"   // the program to become
	envCalls    = "HOSTILE_CALLS"    // numbers of the system calls that it may make
	envFamilies = "HOSTILE_FAMILIES" // and of the families of its sockets
)

// confine becomes the real berthd, under a filter (seccomp(2)) by which what is not
// allowed ends it with SIGSYS, of which Go's runtime tells. It returns only if that
// fails.
func confine() error {
	runtime.LockOSThread()
	var program []unix.SockFilter
	add := func(code uint16, k uint32, yes, no uint8) {
		program = append(program, unix.SockFilter{Code: code, K: k, Jt: yes, Jf: no})
	}
	list := func(env string, f func(n uint32)) error {
		for word := range strings.FieldsSeq(os.Getenv(env)) {
			n, err := strconv.ParseUint(word, 10, 32)
			if err != nil {
				return fmt.Errorf("%s: %w", env, err)
			}
			f(uint32(n))
		}
		return nil
	}
	const (
		load    = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal   = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		verdict = unix.BPF_RET | unix.BPF_K
	)
	add(load, 0, 0, 0) // seccomp_data.nr
	if err := list(envCalls, func(n uint32) {
		if n != unix.SYS_SOCKET {
			add(equal, n, 0, 1)
			add(verdict, unix.SECCOMP_RET_ALLOW, 0, 0)
		}
	}); err != nil {
		return err
	}
	add(equal, unix.SYS_SOCKET, 1, 0)
	add(verdict, unix.SECCOMP_RET_TRAP, 0, 0)
	add(load, 16, 0, 0) // seccomp_data.args[0], its low half: the family
	if err := list(envFamilies, func(n uint32) {
		add(equal, n, 0, 1)
		add(verdict, unix.SECCOMP_RET_ALLOW, 0, 0)
	}); err != nil {
		return err
	}
	add(verdict, unix.SECCOMP_RET_TRAP, 0, 0)
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("prctl: %w", err)
	}
	if err := install(program); err != nil {
		return err
	}
	own := os.Getenv(envReal)
	return fmt.Errorf("becoming %s: %w", own, syscall.Exec(own, os.Args, os.Environ()))
}

// install puts the calling thread under a filter.
func install(program []unix.SockFilter) error {
	prog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	if _, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog))); errno != 0 {
		return fmt.Errorf("seccomp: %w", errno)
	}
	return nil
}
