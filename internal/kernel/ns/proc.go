package ns

import (
	"sync"

	"golang.org/x/sys/unix"
)

// The kernel finds sys/net/ipv4 of one network namespace by looking at that of
// every namespace for which this proc file system was asked before: all have the
// same name in the same folder, and it remembers them as long as the namespaces
// live (fs/proc/proc_sysctl.c, proc_sys_compare). With 5,000 pods an ADD spent
// 10 ms on its four sysctls. So Berth asks a proc file system of its own, mounted
// nowhere, and takes a new one when it has been asked often.

// freshFor is how many files are opened in a proc file system before the next
// one is made, which costs as much as a few of them.
const freshFor = 256

// proc is a proc file system: of our own, or the process's as fallback.
type proc struct {
	fd   int    // its root
	path string // from there; /proc where it cannot be of our own

	of    *procs
	users int // files being opened, and one for being the current one
}

// procs hands out the current proc file system.
type procs struct {
	mu      sync.Mutex
	current *proc
	opened  int // files, in current
}

var ownProc procs

// use returns a proc file system to open one file in.
func (p *procs) use() *proc {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.current == nil || p.opened >= freshFor && p.current.fd >= 0 {
		last := p.current
		p.current, p.opened = mountProc(), 0
		p.current.of, p.current.users = p, 1
		if last != nil {
			last.leave()
		}
	}
	p.opened++
	p.current.users++
	return p.current
}

// done says that the file is open.
func (m *proc) done() {
	m.of.mu.Lock()
	defer m.of.mu.Unlock()
	m.leave()
}

func (m *proc) leave() {
	if m.users--; m.users == 0 && m.fd >= 0 {
		go unix.Close(m.fd) // which unmounts: it waits for the kernel's readers
	}
}

// mountProc makes a proc file system that is mounted nowhere. Where that is not
// allowed, as in some user namespaces, it is the process's own.
func mountProc() *proc {
	fallback := &proc{fd: -1, path: "/proc"}
	fs, err := unix.Fsopen("proc", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fallback
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return fallback
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return fallback
	}
	return &proc{fd: fd}
}
