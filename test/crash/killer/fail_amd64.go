package killer

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// CanFail says that calls can be made to fail on this machine.
const CanFail = true

// fail makes the call at which a thread is stopped return errno without any effect. The
// kernel skips a call with the number -1, and its result is what the result's register has
// (seccomp(2), SECCOMP_RET_TRACE).
func fail(tid int, errno unix.Errno) error {
	var regs unix.PtraceRegs
	if err := unix.PtraceGetRegs(tid, &regs); err != nil {
		return fmt.Errorf("reading registers: %w", os.NewSyscallError("ptrace", err))
	}
	regs.Orig_rax = ^uint64(0)
	regs.Rax = uint64(-int64(errno))
	if err := unix.PtraceSetRegs(tid, &regs); err != nil {
		return fmt.Errorf("writing registers: %w", os.NewSyscallError("ptrace", err))
	}
	return nil
}
