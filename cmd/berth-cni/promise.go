package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/deletions"
)

// reserve is how much of its time DEL keeps for promise.
const reserve = 3 * time.Second

// bootIDFile has the id of this boot. Times of CLOCK_BOOTTIME mean something only in one boot.
const bootIDFile = "/proc/sys/kernel/random/boot_id"

// promise stands in for an agent that is away when it should delete: the plugin queues the
// deletion for the agent, and cuts the pod off itself. nil is success: the deletion is on
// disk, and nobody can be reached through the pod's link. why says what is the matter with the
// agent.
//
// promise queues the deletion first, and asks nothing of the kernel's network before, unless the
// root has neither instance nor run folder: then noAgent looks for the pod's link. So an
// agent that sees the link go down, and would mend it, finds the deletion. Besides, the kernel lets
// the plugin wait while another process has the lock of all network settings. If one of the two, the
// queueing or the cut, fails or hangs (as on a disk that hangs), the plugin still does the other one,
// and tells the runtime to repeat DEL.
func promise(c *call, why error) *api.Error {
	queueErr := inTime(c.deadline-int64(leastCut), "the disk", func() error {
		if e := c.noAgent(); e != nil {
			return e
		}
		return c.enqueue(why)
	})
	if e, ok := queueErr.(*api.Error); ok {
		return e
	}
	cutErr := inTime(c.deadline, "the kernel", c.cutOff)
	said := c.verdict(why, queueErr, cutErr)
	if queueErr == nil {
		c.correct(!errors.Is(cutErr, errLate) && c.isCut(cutErr), said != nil)
	}
	return said
}

// isCut says whether the pod is cut off, for the queue, when the cut has ended.
func (c *call) isCut(cutErr error) bool {
	if c.queued.Cut {
		return c.down || cutErr == nil && c.gone()
	}
	return c.down && cutErr == nil && c.unsure == "" // the link was found by the pod's interface
}

// verdict is what DEL says after the queueing and the cut.
func (c *call) verdict(why, queueErr, cutErr error) *api.Error {
	switch {
	case queueErr != nil:
		return cni.Errorf(cni.CodeTryAgain, "the plugin could not queue the deletion", "the agent: %v; the queue: %v; repeat DEL", why, queueErr)
	case cutErr != nil:
		return cni.Errorf(cni.CodeTryAgain, "the pod is not cut off from the network", "the agent: %v; the cut: %v; the deletion is queued; repeat DEL", why, cutErr)
	case c.unsure != "": // the queued deletion spares that link; a repeated DEL, in a new process, does not
		return cni.Errorf(cni.CodeTryAgain, cni.MsgUnsure, "%v; the ADD of %s began after this DEL's process started, but before that process ran the plugin; repeat DEL", why, c.unsure)
	case c.found, c.head.Chained: // in mode chained the pod's link is another plugin's, which takes it away
	case c.misplaced():
		return cni.Errorf(cni.CodeTryAgain, "the pod is not cut off from the network", "%v; this plugin runs in another network namespace than the agent did; "+
			"the deletion is queued; repeat DEL when the agent runs", why)
	case reachable(why): // otherwise the agent is away, and no link at all is as good as one that is down
		return cni.Errorf(cni.CodeTryAgain, "the pod is not cut off from the network", "%v; the deletion is queued; repeat DEL", why)
	}
	return nil
}

// reachable reports whether an agent that lives has said that it could not cut the pod off.
func reachable(why error) bool {
	var e *api.Error
	return errors.As(why, &e) && e.Code == cni.CodeTryAgain && e.Msg == cni.MsgReachable
}

// enqueue puts the deletion into the agent's queue.
func (c *call) enqueue(why error) error {
	boot, err := readShort(bootIDFile)
	if err != nil {
		return fmt.Errorf("reading the boot's id: %w", err)
	}
	r := deletions.Record{
		Network:   c.head.Name,
		Container: c.container,
		Ifname:    c.ifname,
		Link:      c.head.HostVeth,
		Addresses: c.head.Addresses,
		Netns:     c.netns,
		Boot:      boot,
		Started:   c.started,
		Cut:       c.namesOurs(),
		Reason:    why.Error(),
	}
	if err := deletions.Write(c.head.Root, r); err != nil {
		return err
	}
	c.queued = &r
	return nil
}

// correct writes into the queue what became of the DEL, if the DEL did not end as enqueue expected.
// The pod is not cut off if the plugin could not set the link down, or found no link and cannot
// tell that there is none (gone), as when prevResult is another pod's or an old one. Then people who
// look at the queue see that the pod is not cut off, and the agent does the deletion among the first.
// If DEL tells the runtime to repeat DEL (again), the runtime still needs the plugin, and "berth
// uninstall" heeds that. If correct fails, the deletion stays in the queue as it was.
func (c *call) correct(cut, again bool) {
	r := *c.queued
	if r.Cut == cut && r.Again == again {
		return
	}
	r.Cut, r.Again = cut, again
	limit := func() time.Duration { return leastRead }
	_, _ = within(limit, "the disk", func() (struct{}, error) { return struct{}{}, deletions.Correct(c.head.Root, r) })
}

// readShort reads a file of one short line. It does not wait if the file is a FIFO to which
// nobody writes. (os.ReadFile would first set up Go's poller of files.)
func readShort(path string) (string, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", fmt.Errorf("opening %s: %w", path, err)
	}
	defer unix.Close(fd)
	var b [512]byte
	n, err := unix.Read(fd, b[:])
	if err != nil {
		return "", fmt.Errorf("reading %s: %w", path, err)
	}
	return strings.TrimSpace(string(b[:n])), nil
}
