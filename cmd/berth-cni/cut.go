package main

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/boottime"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/internal/stamp"
)

const (
	// leastCut is the least time that the plugin gives the cut, and also the queueing before the
	// cut, however late the plugin is.
	leastCut = time.Second
	// leastRead is how long the cut waits for a file that it can do without.
	leastRead = 200 * time.Millisecond
)

// inTime runs do, which may wait for the kernel's lock of network settings or for a disk, on
// a thread of its own, and waits for it until a deadline (CLOCK_BOOTTIME in nanoseconds). A
// thread that waits for the lock or the disk cannot be interrupted, and often not even killed:
// the plugin answers by the deadline, but its process stays until the wait ends.
func inTime(deadline int64, who string, do func() error) error {
	limit := func() time.Duration { return until(deadline) }
	_, err := within(limit, who, func() (struct{}, error) { return struct{}{}, do() })
	return err
}

// errLate says that something has not answered in time.
var errLate = errors.New("has not answered in time")

// until returns the time until a deadline, and leastCut at least.
func until(deadline int64) time.Duration {
	return max(leastCut, time.Duration(deadline-boottime.Now()))
}

// within returns what do returns, or errLate if do takes longer than limit says. If do does
// not wait, and Go has one processor, within costs a few microseconds and no system call. Only
// if do does wait, within calls limit, which asks for the time, and makes a timer, for which Go
// sets up its poller of files.
func within[T any](limit func() time.Duration, who string, do func() (T, error)) (T, error) {
	type outcome struct {
		value T
		err   error
	}
	done := make(chan outcome, 1)
	go func() {
		value, err := do()
		done <- outcome{value, err}
	}()
	runtime.Gosched()
	select {
	case o := <-done:
		return o.value, o.err
	default:
	}
	late := time.NewTimer(limit())
	defer late.Stop()
	select {
	case o := <-done:
		return o.value, o.err
	case <-late.C:
		var none T
		return none, fmt.Errorf("%s %w", who, errLate)
	}
}

// cutOff sets down every link of this attachment that cutOff finds: the link that prevResult
// names, and the link that leads into the pod. The two links differ if prevResult is of an earlier
// ADD of the same attachment, or is wrong. No link at all is as good as a link that is down.
func (c *call) cutOff() error {
	named, err := c.named()
	if err == nil {
		err = c.cut(named)
	}
	inPod, lookErr := c.leadsTo() // last, because the way through the pod may take long
	if lookErr == nil && inPod.index() != named.index() {
		lookErr = c.cut(inPod)
	}
	return errors.Join(err, lookErr)
}

// cut sets a link down, and so cuts its pod off; nil means that there is no link. A link that is
// gone is as good as one that is down. cut deletes a link that an ADD has made by half: an agent that
// hangs in that ADD would set the link up when it goes on, and might end before it cuts the pod off.
func (c *call) cut(end answer) error {
	index := end.index()
	if index == 0 {
		return nil
	}
	c.found = true
	err := setDown(index)
	if err == nil && c.halfMade(end) {
		err = deleteLink(index, until(c.deadline)-leastRead)
	}
	if err != nil && err != unix.ENODEV {
		return fmt.Errorf("setting link %d down: %w", index, err)
	}
	c.down = true
	return nil
}

// halfMade reports whether a link is this attachment's, and its ADD has not set it up yet.
func (c *call) halfMade(end answer) bool {
	s, stamped := stamp.ParseEnd(end.text(unix.IFLA_IFALIAS))
	return stamped && s.Is(c.key()) && s.IsComing(end.number(unix.IFLA_GROUP))
}

// misplaced reports whether the agent of this boot served in a network namespace that differs from
// this plugin's, as under a runtime that has a namespace of its own. Then the plugin cannot
// see the pod's link. misplaced is false for a pod whose namespace is not at its path: as far
// as the plugin knows, such a pod has no link.
func (c *call) misplaced() bool {
	if c.servedLast() != elsewhere {
		return false
	}
	pod, err := c.openNetns()
	if err != nil {
		return false
	}
	pod.Close()
	return true
}

// namesOurs reports whether prevResult names a link of the root's agent. namesOurs looks at nothing
// but the link's name.
func (c *call) namesOurs() bool {
	link := c.head.HostVeth
	return link != "" && isOf(c.head.Root, link[1:])
}

// named returns the link that prevResult names, if the link's alias says that it is this
// attachment's; nil if the link is another's, or is gone. If somebody has renamed the link, named
// finds the link by its altname. A prevResult can be wrong, and a pod that prevResult names by mistake
// must stay connected. So if the alias is nobody's, because another program took Berth's alias away,
// named only notes the link for leadsTo.
func (c *call) named() (answer, error) {
	if !c.namesOurs() {
		return nil, nil
	}
	link := c.head.HostVeth
	for _, d := range []device{{name: link}, {altname: stamp.AltName(link)}} {
		end, err := look(d)
		if err == unix.ENODEV {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("asking for link %s: %w", link, err)
		}
		s, stamped := stamp.ParseEnd(end.text(unix.IFLA_IFALIAS))
		if id, _ := stamp.EndID(link); stamped && s.ID == id && s.Is(c.key()) && c.older(s) {
			return end, nil
		}
		if !stamped && c.nobodys == 0 {
			c.nobodys = end.index()
		}
	}
	return nil, nil
}

// leadsTo returns the host's end of the link whose other end is the pod's
// interface, if the alias of the host's end says that it is this attachment's, or if the alias
// is nobody's and prevResult names the link; otherwise nil. The pod tells only an index. An alias
// that may lack the end of its key (stamp.Stamp.Short) counts only for the incarnation that prevResult
// names. So a pod that lies gets no other pod cut off. The link's name tells nothing, because
// somebody may have renamed it. If the key has several incarnations, leadsTo finds the one that is
// in the pod now, unless its ADD began after this DEL: then the DEL is not about that incarnation.
//
// If leadsTo cannot see something, such as a namespace that is gone, it returns nil: leadsTo only
// helps runtimes that lost the result of ADD, that send no result (configurations below 0.4.0)
// or an old result, and helps with renamed links. leadsTo returns an error only if another try may
// see more: if there was no file descriptor left, or if the node does not tell of the host's end
// (errNode). A lost answer of the kernel in the pod (errLost) is no error: the pod can have the
// kernel's answers lost for as long as the pod likes, just as the pod can hide its interface.
func (c *call) leadsTo() (answer, error) {
	inside, end, err := c.ends()
	c.noPod = errors.Is(err, ns.ErrGone) || errors.Is(err, ns.ErrFile)
	if errors.Is(err, errNode) {
		return nil, err
	}
	if end == nil {
		return nil, passing(err)
	}
	s, stamped := stamp.ParseEnd(end.text(unix.IFLA_IFALIAS))
	if !stamped && end.index() == c.nobodys && end.number(unix.IFLA_LINK) == inside.index() {
		return end, nil
	}
	if !stamped || !s.Is(c.key()) || !isOf(c.head.Root, s.Instance) {
		return nil, nil
	}
	if id, _ := stamp.EndID(c.head.HostVeth); s.Short() && s.ID != id || !c.older(s) {
		return nil, nil
	}
	return end, nil
}

// older reports whether a link of this attachment is of an ADD that began before this DEL. If
// that cannot be told, older notes the link in c.unsure.
func (c *call) older(s stamp.Stamp) bool {
	if s.Start > c.started && s.Start <= c.running {
		c.unsure = s.Link()
	}
	return s.Start <= c.started
}

// ends returns both ends of the link that has the pod's interface as one end, or why ends cannot see
// them.
func (c *call) ends() (inside, host answer, err error) {
	pod, err := c.openNetns() // fails also if the path hangs: then the pod cannot be seen either
	if err != nil {
		return nil, nil, err
	}
	defer pod.Close()
	err = pod.Do(func() (err error) {
		inside, err = look(device{name: c.ifname})
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	host, err = peer(inside.number(unix.IFLA_LINK))
	return inside, host, err
}

// errNode says that the node, where no pod disturbs the plugin, has not told of a link.
var errNode = errors.New("looking for the link that leads into the pod")

// peer returns the node's link at an index that a pod tells; nil if there is none. Any other
// error is errNode. A pod's tunnel can tell a number that is no index, at which the kernel refuses to
// look (EINVAL): such a number leads to no link.
func peer(index uint32) (answer, error) {
	if index == 0 || index > math.MaxInt32 {
		return nil, nil
	}
	link, err := look(device{index: index})
	if err == unix.ENODEV {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%w: link %d: %w", errNode, index, err)
	}
	return link, nil
}

// elsewhere returns a link of this attachment whose agent runs, and what that agent says of
// itself, such as its root. noAgent calls it only for a root without an agent, so the agent of
// the link must have another root. A link that cannot be seen in time is not returned.
func (c *call) elsewhere() (link, who string) {
	type found struct{ link, who string }
	limit := func() time.Duration { return leastCut }
	f, _ := within(limit, "the kernel", func() (found, error) {
		self, err := ns.Self()
		if err != nil {
			return found{}, err
		}
		defer self.Close()
		_, end, _ := c.ends()
		ends := []answer{end}
		if link := c.head.HostVeth; link != "" {
			named, _ := look(device{name: link})
			renamed, _ := look(device{altname: stamp.AltName(link)})
			ends = append(ends, named, renamed)
		}
		for _, end := range ends {
			s, stamped := stamp.ParseEnd(end.text(unix.IFLA_IFALIAS))
			if !stamped || !s.Is(c.key()) {
				continue
			}
			if who, locked := root.Locked(root.Lock(s.Instance, self.Ref().Ino)); locked {
				return found{s.Link(), who}, nil
			}
		}
		return found{}, nil
	})
	return f.link, f.who
}

// openNetns opens the pod's network namespace. The path may hang, and on a busy node it may
// take a while.
func (c *call) openNetns() (*ns.Netns, error) {
	limit := func() time.Duration { return until(c.deadline) - leastRead }
	return within(limit, "the network namespace's path", func() (*ns.Netns, error) { return ns.Open(c.netns) })
}

// passing returns err, an error in looking into the pod, if another try may succeed. It
// returns nil if err means that nothing can be seen.
func passing(err error) error {
	if ns.Passing(err) {
		return fmt.Errorf("looking into the pod: %w", err)
	}
	return nil
}

func (c *call) key() stamp.Key {
	return stamp.Key{Network: c.head.Name, ContainerID: c.container, Ifname: c.ifname}
}

// isOf reports whether id, which begins with an instance's id or with the part of it that
// links' names have, is of the instance that lives at a root. If the root's instance is not
// known, isOf reports true: the form of the name tells enough, because 14 characters in an
// alphabet of 32 are not somebody else's by chance.
func isOf(dir root.Dir, id string) bool {
	instance, err := within(func() time.Duration { return leastRead }, "the disk", func() (string, error) { return readShort(dir.Instance()) })
	if err != nil || len(instance) < stamp.PrefixLen {
		return true
	}
	return strings.HasPrefix(id, instance[:stamp.PrefixLen])
}
