// Package killer runs a program of ours and decides at each system call of it
// that changes the world what becomes of it: it happens, the program is killed
// before its effect or after it, or the call fails. strace's injection counts
// such calls a thread, and a Go program moves between threads; here all threads
// are counted together, in the order in which the kernel is about to obey them.
//
// A seccomp filter, which the program is born with, stops it at these calls
// alone (ptrace(2), PTRACE_EVENT_SECCOMP), so that it otherwise runs at its
// usual speed. No privilege is needed beyond a user namespace of one's own.
//
// In the order of a run: board (the first steps inside the new process), filter,
// process (its life), trace (its stops), call and netlink (what a stop is about),
// fail.
package killer
