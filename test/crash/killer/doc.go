// Package killer runs one of Berth's programs, and decides about each of its system calls
// that changes the world: the call happens, the program is killed before or after the
// call's effect, or the call fails. strace's injection counts such calls by thread, and a
// Go program moves between threads. This package counts the calls of all threads together,
// in the order in which the kernel is about to execute them.
//
// The program starts with a seccomp filter that stops it only at these calls (ptrace(2),
// PTRACE_EVENT_SECCOMP), so that it otherwise runs at its usual speed. This needs no
// privilege beyond a user namespace of one's own.
//
// The files in the order of a run: board (the first steps inside the new process), filter,
// process (the process's life), trace (the process's stops), call and netlink (what a stop
// is about), fail.
package killer
