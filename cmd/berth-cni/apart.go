package main

import (
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// deleterName is the argv[0] of a process that deletes one link for the plugin.
const deleterName = "berth-cni-delete"

// firstLook is how long after its start deleteLink first looks whether the link is gone; each further look
// comes after twice that time.
const firstLook = 10 * time.Millisecond

// deleteLink does `ip link del LINK` by the link's index, in a process of its own, and returns when the
// kernel lists the link no more. The kernel then may let that process wait for as long as a program of the
// pod uses the pod's end, and no signal ends that wait. The plugin, for whose end the runtime waits, does
// not take part in it. deleteLink returns errLate if the kernel still lists the link when the time is up.
//
// Without a further process, as when there is no /proc, the plugin deletes the link itself.
func deleteLink(index uint32, limit time.Duration) error {
	pid, err := startDeleter(index)
	if err != nil {
		return deleteHere(index)
	}
	ended := make(chan struct{})
	go func() { await(pid); close(ended) }()
	late := time.NewTimer(limit)
	defer late.Stop()
	for pause, over := firstLook, false; ; pause *= 2 {
		again := time.NewTimer(pause)
		select {
		case <-ended:
			over = true
		case <-late.C:
			err = errLate
		case <-again.C:
		}
		again.Stop()
		switch _, gone := look(device{index: index}); {
		case gone == unix.ENODEV:
			return nil
		case over: // the process could not delete the link, or somebody has killed it
			return deleteHere(index)
		case err != nil:
			return err
		}
	}
}

// startDeleter starts this program as the process that deletes a link. The process has nothing of the
// plugin's, such as the pipes whose end the runtime awaits.
func startDeleter(index uint32) (pid int, err error) {
	null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(null)
	std := uintptr(null)
	return syscall.ForkExec("/proc/self/exe", []string{deleterName, strconv.FormatUint(uint64(index), 10)},
		&syscall.ProcAttr{Dir: "/", Env: []string{}, Files: []uintptr{std, std, std}})
}

// await waits for the end of a process.
func await(pid int) {
	for {
		if _, err := unix.Wait4(pid, nil, 0, nil); err != unix.EINTR {
			return
		}
	}
}

// beDeleter deletes the link that the arguments name and ends, if the plugin has started this process for
// that; otherwise beDeleter does nothing.
func beDeleter() {
	if len(os.Args) != 2 || os.Args[0] != deleterName {
		return
	}
	index, err := strconv.ParseUint(os.Args[1], 10, 32)
	if err != nil || deleteHere(uint32(index)) != nil {
		os.Exit(1)
	}
	os.Exit(0)
}
