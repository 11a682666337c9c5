package conform

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// unmountBut unmounts everything but what is mounted at the paths of bare. A path that is mounted more than once has as many places there.
func unmountBut(bare []string) error {
	now, err := mountPoints()
	if err != nil || bare == nil {
		return err
	}
	left := map[string]int{}
	for _, path := range bare {
		left[path]++
	}
	var more []string
	for _, path := range now {
		if left[path]--; left[path] < 0 {
			more = append(more, path)
		}
	}
	var errs []error
	for _, path := range slices.Backward(more) { // a mount comes after the mount that contains it
		// umount --lazy PATH; EINVAL and ENOENT: it went with the mount that contained it
		if err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("unmounting %s: %w", path, err))
		}
	}
	return errors.Join(errs...)
}

// removeShared is `ipcrm --all`: the System V shared memory, semaphores and message queues of all nodes are in one IPC namespace.
func removeShared() error {
	var errs []error
	for sort, control := range map[string]func(id uintptr) unix.Errno{
		"shm": func(id uintptr) unix.Errno { _, _, e := unix.Syscall(unix.SYS_SHMCTL, id, unix.IPC_RMID, 0); return e },
		"sem": func(id uintptr) unix.Errno { _, _, e := unix.Syscall(unix.SYS_SEMCTL, id, 0, unix.IPC_RMID); return e },
		"msg": func(id uintptr) unix.Errno { _, _, e := unix.Syscall(unix.SYS_MSGCTL, id, unix.IPC_RMID, 0); return e },
	} {
		text, _ := os.ReadFile("/proc/sysvipc/" + sort) // an error means that the kernel lacks them
		for i, line := range strings.Split(string(text), "\n") {
			var key int
			var id uintptr
			if n, _ := fmt.Sscan(line, &key, &id); i == 0 || n < 2 { // the heading, and the end
				continue
			}
			if e := control(id); e != 0 && e != unix.EINVAL && e != unix.EIDRM {
				errs = append(errs, fmt.Errorf("removing %s %d: %w", sort, id, e))
			}
		}
	}
	return errors.Join(errs...)
}
