// Package linklock lets the threads of this process make system calls one after another if these calls
// take the kernel's one lock of all links (rtnl_mutex).
//
// The kernel has threads wait for that lock at the cost of a processor. A thread that waits for
// it by netlink watches the thread that holds it (mutex_spin_on_owner). A thread that writes a
// sysctl which needs the lock, such as disable_ipv6 or forwarding, does not wait at all: the
// kernel has it make its system call again until the lock happens to be free (rtnl_trylock and
// restart_syscall, net/ipv6/addrconf.c and net/ipv4/devinet.c of Linux 6.18). On a node with two
// processors and 16 ADDs at once, such waiting took a sixth of the agent's processor time, and an ADD
// took a quarter longer (BenchmarkVerbs).
//
// Deletions of links do not take this lock: a deletion spends most of its time waiting for the
// kernel's readers to go on, and others may have the kernel's lock meanwhile.
package linklock

import "sync"

var lock sync.Mutex

// Do calls f, which makes system calls that take the kernel's lock of all links, and nothing
// else that may wait. No two calls run f at the same time. f must not call Do.
func Do(f func() error) error {
	lock.Lock()
	defer lock.Unlock()
	return f()
}
