package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// remains are faults that leave something outside of the node's network for each pod.
var remains = map[string]func(c *call) error{
	"run-file-left":      func(c *call) error { return leaveFile("/run/planted/" + c.id) },
	"etc-file-left":      func(c *call) error { return leaveFile("/etc/planted/" + c.id) },
	"shm-file-left":      func(c *call) error { return leaveFile("/dev/shm/planted-" + c.id) },
	"log-file-left":      func(c *call) error { return leaveFile("/var/log/planted/" + c.id + ".log") },
	"lib-file-left":      func(c *call) error { return leaveFile("/var/lib/planted/" + c.id) },
	"tmp-file-left":      func(c *call) error { return leaveFile("/tmp/planted-" + c.id) },
	"mount-left":         leaveMount,
	"socket-left":        listenFor,
	"process-left":       func(*call) error { return leaveProcess() },
	"pod-process-left":   leavePodProcess,
	"shared-memory-left": func(c *call) error { return shared(unix.SYS_SHMGET, uintptr(c.number()+1), 4096, unix.IPC_CREAT|0o600) },
	"semaphore-left":     func(c *call) error { return shared(unix.SYS_SEMGET, uintptr(c.number()+1), 1, unix.IPC_CREAT|0o600) },
	"queue-left":         func(c *call) error { return shared(unix.SYS_MSGGET, uintptr(c.number()+1), unix.IPC_CREAT|0o600, 0) },
}

func leaveFile(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, nil, 0o600)
}

// leaveMount is `mount -t tmpfs tmpfs /run/planted`, once more for each pod.
func leaveMount(*call) error {
	if err := os.Mkdir("/run/planted", 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return unix.Mount("tmpfs", "/run/planted", "tmpfs", 0, "")
}

// leaveProcess starts a process that nobody ends.
func leaveProcess() error {
	cmd := exec.Command("sleep", "3600")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd.Start()
}

func leavePodProcess(c *call) error {
	pod, err := os.Open(c.netns)
	if err != nil {
		return err
	}
	defer pod.Close()
	return inside(pod, leaveProcess)
}

// shared makes something of System V with a key of its own.
func shared(call, key, a, b uintptr) error {
	if _, _, e := unix.Syscall(call, key, a, b); e != 0 {
		return fmt.Errorf("key %s: %w", strconv.Itoa(int(key)), e)
	}
	return nil
}
