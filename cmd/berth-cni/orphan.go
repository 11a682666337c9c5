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
	if !stamped {
		return false
	}
	var here unix.Stat_t
	if unix.Stat("/proc/thread-self/ns/net", &here) != nil {
		return true // where nobody can be seen, nobody serves
	}
	_, served := root.Locked(root.Lock(s.Instance, here.Ino))
	return !served
}
