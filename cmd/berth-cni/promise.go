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

// bootIDFile has the id of this boot, in which the clock means something.
const bootIDFile = "/proc/sys/kernel/random/boot_id"

// promise answers for an agent that is away when it should delete: the plugin
// queues the deletion for it, and cuts the pod off itself. nil is success: the
// deletion is on disk, and nobody is reached through the pod's link. why says
// what is the matter with the agent.
//
// The deletion is queued first, and nothing is asked of the kernel before: an
// agent that sees the link go down, and would mend it, finds it; and the kernel
// may let the plugin wait, while somebody has the lock of all its network
// settings. If either fails, or does not end, as with a disk that hangs, the other
// is done all the same, and DEL is to be repeated.
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
	late := errors.Is(cutErr, errLate)
	if queueErr == nil && c.queued.Cut && (late || !c.down) {
		c.uncut()
	}
	switch {
	case queueErr != nil:
		return cni.Errorf(cni.CodeTryAgain, "the deletion is not promised", "%v; and: %v; repeat DEL", why, queueErr)
	case cutErr != nil:
		return cni.Errorf(cni.CodeTryAgain, "the pod is not cut off", "%v; and: %v; the deletion is queued; repeat DEL", why, cutErr)
	case c.unsure != "": // the deletion that is queued spares it; its repetition, in a new process, does not
		return cni.Errorf(cni.CodeTryAgain, cni.MsgUnsure, "%v; the ADD of %s began after this process, and before that became the plugin; repeat DEL", why, c.unsure)
	case c.found:
	case c.misplaced():
		return cni.Errorf(cni.CodeTryAgain, "the pod is not cut off", "%v; and: this plugin is in another network namespace than the agent was; "+
			"the deletion is queued; repeat DEL when the agent runs", why)
	case reachable(why): // else the agent is away, and no link at all is as good as one that is down
		return cni.Errorf(cni.CodeTryAgain, "the pod is not cut off", "%v; the deletion is queued; repeat DEL", why)
	}
	return nil
}

// reachable reports whether an agent that lives has said that it could not cut the pod off.
func reachable(why error) bool {
	var e *api.Error
	return errors.As(why, &e) && e.Code == cni.CodeTryAgain && e.Msg == cni.MsgReachable
}

// enqueue puts the deletion into the queue of the agent.
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

// uncut takes back, in the queue, that the pod is cut off: its link was not found, as
// where prevResult is another pod's or an old one, or could not be set down. Who looks at
// the queue is told so, and the agent does the deletion among the first. If that fails
// the deletion is queued all the same.
func (c *call) uncut() {
	limit := func() time.Duration { return leastRead }
	_, _ = within(limit, "the disk", func() (struct{}, error) { return struct{}{}, deletions.Uncut(c.head.Root, *c.queued) })
}

// readShort reads a file of one short line, and waits for nobody who would write to
// a FIFO. (os.ReadFile would first set up what it takes to wait for many files.)
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
