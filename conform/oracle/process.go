package oracle

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Processes reads which processes there are in the PID namespace of /proc, but for the first one and the caller's, and whether each
// is in the network namespace of the calling thread. It leaves out those that have ended; numbers, because a daemon that starts again
// is no other one; and in the node's network namespace those that have a parent other than the first process, because a daemon starts and ends
// its helpers as it likes. What outlives a plugin is the first process's child.
func Processes() (State, error) {
	here, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		return State{}, err
	}
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return State{}, err
	}
	var s State
	for _, dir := range all {
		if pid := filepath.Base(dir); pid == "1" || pid == strconv.Itoa(os.Getpid()) {
			continue
		}
		stat, err := os.ReadFile(dir + "/stat")
		if err != nil { // it has ended
			continue
		}
		// PID (NAME) STATE PARENT ..., and a name may have parentheses of its own
		begin, end := bytes.IndexByte(stat, '('), bytes.LastIndexByte(stat, ')')
		if begin < 0 || end < begin {
			continue
		}
		f := strings.Fields(string(stat[end+1:]))
		if len(f) < 2 || f[0] == "Z" || f[0] == "X" {
			continue
		}
		where := "in a pod or another network namespace"
		if its, err := os.Readlink(dir + "/ns/net"); err != nil {
			continue
		} else if its == here {
			if f[1] != "1" {
				continue
			}
			where = "in the node's network namespace"
		}
		s.lines = append(s.lines, fmt.Sprintf("process %s %s", stat[begin+1:end], where))
	}
	slices.Sort(s.lines)
	return s, nil
}

// SharedMemory reads the System V shared memory, semaphores and message queues of the IPC namespace, by their keys.
func SharedMemory() (State, error) {
	var s State
	for _, sort := range []string{"shm", "sem", "msg"} {
		text, err := os.ReadFile("/proc/sysvipc/" + sort)
		if errors.Is(err, fs.ErrNotExist) { // the kernel lacks them
			continue
		}
		if err != nil {
			return s, err
		}
		for i, line := range strings.Split(string(text), "\n") {
			if f := strings.Fields(line); i > 0 && len(f) > 0 { // the first line is a heading
				s.lines = append(s.lines, fmt.Sprintf("ipc %s key %s", sort, f[0]))
			}
		}
	}
	slices.Sort(s.lines)
	return s, nil
}

// AllMounts reads the mounts of the mount namespace of the calling thread.
func AllMounts() (State, error) {
	info, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return State{}, err
	}
	var s State
	for line := range strings.Lines(string(info)) {
		// ID parent major:minor root point options [optional...] - type source options
		before, after, _ := strings.Cut(line, " - ")
		kind, _, _ := strings.Cut(after, " ")
		if f := strings.Fields(before); len(f) > 4 {
			s.lines = append(s.lines, fmt.Sprintf("mount %s %s %s", f[4], f[3], kind))
		}
	}
	slices.Sort(s.lines)
	return s, nil
}
