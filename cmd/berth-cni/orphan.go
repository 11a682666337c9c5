package main

import (
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/internal/stamp"
)

// orphaned reports whether the pod's interface leads to a link of this attachment, and no agent
// serves the link's instance: the folders of the agent that made the link are lost. The plugin
// cuts the link off like any other, and queues the deletion for the next agent.
func (c *call) orphaned() bool {
	end, err := c.leadsTo()
	if err != nil || end == nil {
		return false
	}
	s, stamped := stamp.ParseEnd(end.text(unix.IFLA_IFALIAS))
	if !stamped {
		return false
	}
	var here unix.Stat_t
	if unix.Stat("/proc/thread-self/ns/net", &here) != nil {
		return true // if the plugin cannot see who serves, nobody does
	}
	_, served := root.Locked(root.Lock(s.Instance, here.Ino))
	return !served
}
