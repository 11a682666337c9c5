package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/deletions"
)

// reserve is how much of its time DEL keeps for promise.
const reserve = 3 * time.Second

// bootIDFile has the id of this boot, in which the clock means something.
const bootIDFile = "/proc/sys/kernel/random/boot_id"

// promise answers for an agent that is away when it should delete: the plugin
// cuts the pod off itself, and queues the deletion for the agent. nil is
// success: nobody is reached through the pod's link, and the deletion is on
// disk. why says what is the matter with the agent.
func promise(c *call, why error) *api.Error {
	if e := c.noRoot(); e != nil {
		return e
	}
	isCut, cutErr := cut(c.head.Root, c.head.HostVeth)
	// What cannot be cut off is queued all the same: the agent cuts it off when
	// it is back, whether DEL is repeated or not.
	if err := c.enqueue(isCut, why); err != nil {
		return cni.Errorf(cni.CodeTryAgain, "the deletion is not promised", "%v; and: %v; repeat DEL", why, err)
	}
	if cutErr != nil {
		return cni.Errorf(cni.CodeTryAgain, "the pod is not cut off", "%v; and: %v; the deletion is queued; repeat DEL", why, cutErr)
	}
	return nil
}

// enqueue puts the deletion into the queue of the agent.
func (c *call) enqueue(isCut bool, why error) error {
	boot, err := os.ReadFile(bootIDFile)
	if err != nil {
		return fmt.Errorf("reading the boot's id: %w", err)
	}
	return deletions.Write(c.head.Root, deletions.Record{
		Network:   c.head.Name,
		Container: c.container,
		Ifname:    c.ifname,
		Link:      c.head.HostVeth,
		Addresses: c.head.Addresses,
		Netns:     c.netns,
		Boot:      strings.TrimSpace(string(boot)),
		Started:   c.started,
		Cut:       isCut,
		Reason:    why.Error(),
	})
}
