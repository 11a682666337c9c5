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

// confined is the name under which this program becomes a berthd that has the rights, and
// systemd's filters, of deploy/berthd.service.
const confined = "berthd"

// The environment variables that tell confine what to do.
const (
	envReal         = "HOSTILE_BERTHD"       // the program to become
	envCapabilities = "HOSTILE_CAPABILITIES" // numbers of the capabilities that berthd keeps
	envCalls        = "HOSTILE_CALLS"        // numbers of the system calls that berthd may make
	envFamilies     = "HOSTILE_FAMILIES"     // numbers of the address families that berthd's sockets may have
	envDenials      = "HOSTILE_DENIALS"      // what berthd may not pass in calls that it may make, each as denial.String
)

// denial is what a system call may not have in one of its arguments: all of the bits together or, if
// any is set, a single one of them.
type denial struct {
	call, arg int
	bits      uint32
	any       bool
}

func (d denial) String() string { return fmt.Sprintf("%d:%d:%d:%t", d.call, d.arg, d.bits, d.any) }

// confine becomes the real berthd, with the capabilities of envCapabilities alone, and under a filter
// (seccomp(2)). A call that the filter does not allow ends berthd with SIGSYS, and Go's runtime tells
// of that. confine returns only if it fails.
func confine() error {
	runtime.LockOSThread()
	unix.Umask(0o077)
	if err := keepCapabilities(); err != nil {
		return err
	}
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
	for word := range strings.FieldsSeq(os.Getenv(envDenials)) {
		var d denial
		if _, err := fmt.Sscanf(word, "%d:%d:%d:%t", &d.call, &d.arg, &d.bits, &d.any); err != nil {
			return fmt.Errorf("%s: %w", envDenials, err)
		}
		add(load, 0, 0, 0)                  // seccomp_data.nr
		add(equal, uint32(d.call), 0, 4)    // otherwise on to what comes behind this denial
		add(load, uint32(16+8*d.arg), 0, 0) // seccomp_data.args, its low half
		add(unix.BPF_ALU|unix.BPF_AND|unix.BPF_K, d.bits, 0, 0)
		if d.any {
			add(equal, 0, 1, 0)
		} else {
			add(equal, d.bits, 0, 1)
		}
		add(verdict, unix.SECCOMP_RET_TRAP, 0, 0)
	}
	add(load, 0, 0, 0) // seccomp_data.nr
	add(equal, unix.SYS_CLONE3, 0, 1)
	add(verdict, unix.SECCOMP_RET_ERRNO|uint32(unix.ENOSYS), 0, 0) // as systemd does: the flags of clone3 are in memory
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

// keepCapabilities takes all but the unit's capabilities out of the thread's bounding set. The program
// that the thread becomes then has only the unit's capabilities, because it is root's (capabilities(7)).
func keepCapabilities() error {
	keep := map[uintptr]bool{}
	for word := range strings.FieldsSeq(os.Getenv(envCapabilities)) {
		n, err := strconv.ParseUint(word, 10, 8)
		if err != nil {
			return fmt.Errorf("%s: %w", envCapabilities, err)
		}
		keep[uintptr(n)] = true
	}
	for n := uintptr(0); n <= unix.CAP_LAST_CAP; n++ {
		if keep[n] {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, n, 0, 0, 0); err != nil && err != unix.EINVAL { // EINVAL: the kernel does not know the capability
			return fmt.Errorf("dropping capability %d: %w", n, err)
		}
	}
	return nil
}

// install puts the calling thread under a filter.
func install(program []unix.SockFilter) error {
	prog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	if _, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog))); errno != 0 {
		return fmt.Errorf("seccomp: %w", errno)
	}
	return nil
}
