package main

import (
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/internal/stamp"
)

// orphaned reports whether the pod's interface leads to a link of this attachment's that an
// agent made whose folders are lost: nobody serves its instance. The link is cut off like
// any other, and the deletion is queued for the agent that comes.
func (c *call) orphaned() bool {
	index, err := c.leadsTo()
	if err != nil || index == 0 {
		return false
	}
	end, err := look(device{index: index})
	if err != nil {
		return false
	}
	s, stamped := stamp.Parse(end.text(unix.IFLA_IFALIAS))
	return stamped && !served(s.Instance)
}

// served reports whether an agent lives that serves an instance in this network namespace:
// it has locked a file then (daemon.LockInstance). Where that cannot be seen, none does.
func served(instance string) bool {
	var here unix.Stat_t
	if unix.Stat("/proc/thread-self/ns/net", &here) != nil {
		return false
	}
	fd, err := unix.Open(root.Lock(instance, here.Ino), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return unix.Flock(fd, unix.LOCK_SH|unix.LOCK_NB) == unix.EWOULDBLOCK
}
