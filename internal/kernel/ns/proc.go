package ns

import (
	"sync"

	"golang.org/x/sys/unix"
)

// A proc file system gets slower with every network namespace whose sysctls it has
// shown: the folders sys/net/ipv4 of all these namespaces have the same name in the
// same folder, the kernel caches them for as long as the namespaces live, and to find one such folder
// the kernel looks at all of them (fs/proc/proc_sysctl.c, proc_sys_compare). With 5,000 pods an ADD
// spent 10 ms on its four sysctls. So Berth uses a proc file system of its own, mounted nowhere, and
// makes a new one after it has opened many files in it.

// freshFor is how many files Berth opens in one proc file system before it makes the next. Making a
// file system costs as much as opening a few files.
const freshFor = 256

// proc is a proc file system: a proc file system of Berth's own or, as a fallback, the process's /proc.
type proc struct {
	fd   int    // the root folder of our own file system; -1 for the fallback
	path string // prefix of paths, relative to fd: "" for our own file system, "/proc" for the fallback

	of    *procs
	users int // how many files callers are opening, plus one while this proc is of.current
}

// procs hands out the current proc file system.
type procs struct {
	mu      sync.Mutex
	current *proc
	opened  int // how many files callers have opened in current
}

var ownProc procs

// use returns a proc file system in which the caller may open one file. The caller
// calls done afterwards.
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

// done says that the caller of use has opened its file.
func (m *proc) done() {
	m.of.mu.Lock()
	defer m.of.mu.Unlock()
	m.leave()
}

func (m *proc) leave() {
	if m.users--; m.users == 0 && m.fd >= 0 {
		go unix.Close(m.fd) // it unmounts the file system, and waits for an RCU grace period
	}
}

// mountProc makes a proc file system that is mounted nowhere. If the kernel does not allow that, as
// in some user namespaces, mountProc returns the process's own /proc.
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
