package main

import (
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/boottime"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/internal/stamp"
)

const (
	// leastCut is how long a cut may take, however late it is, and the queueing
	// before it.
	leastCut = time.Second
	// leastRead is how long the cut waits for a file that it can do without.
	leastRead = 200 * time.Millisecond
)

// inTime does something that may wait for the kernel's lock of network settings, or
// for a disk, on a thread of its own, until a deadline (CLOCK_BOOTTIME in
// nanoseconds). Who waits for them cannot be interrupted, nor often killed: the
// answer is out by the deadline, but the process is there until somebody gives the
// lock back.
func inTime(deadline int64, who string, do func() error) error {
	limit := func() time.Duration { return until(deadline) }
	_, err := within(limit, who, func() (struct{}, error) { return struct{}{}, do() })
	return err
}

// errLate is that something has not answered in time.
var errLate = errors.New("has not answered in time")

// until returns how long it is until a deadline, and leastCut at least.
func until(deadline int64) time.Duration {
	return max(leastCut, time.Duration(deadline-boottime.Now()))
}

// within is what do returns, or errLate if that takes longer than limit says. Where do
// does not wait, and Go has one processor, it costs a few microseconds and no system
// call: limit asks for the time, and a timer first sets up what it takes to wait for
// files.
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

// cutOff sets down every link that can be found and is this attachment's: the
// one that prevResult names, and the one that leads into the pod. They differ
// where prevResult is of an earlier ADD of the same attachment, or wrong. No link
// at all is as good as one that is down.
func (c *call) cutOff() error {
	named, err := c.named()
	if err == nil {
		err = c.cut(named)
	}
	inPod, lookErr := c.leadsTo() // looked for last: what is in the pod's way may take long
	if lookErr == nil && inPod != named {
		lookErr = c.cut(inPod)
	}
	return errors.Join(err, lookErr)
}

// cut sets a link down, and so cuts its pod off. 0 is no link; one that is gone
// is as good.
func (c *call) cut(index uint32) error {
	if index == 0 {
		return nil
	}
	c.found = true
	if err := setDown(index); err != nil && err != unix.ENODEV {
		return fmt.Errorf("setting link %d down: %w", index, err)
	}
	c.down = true
	return nil
}

// misplaced reports whether the agent of this boot served in another network namespace
// than this plugin is in, as under a runtime that has one of its own: the pod's link is
// not seen from here. A pod whose namespace is not at its path has none, for all that is
// known.
func (c *call) misplaced() bool {
	limit := func() time.Duration { return leastRead }
	marker, err := within(limit, "the disk", func() (string, error) { return readShort(c.head.Root.Epoch()) })
	if err != nil {
		return false
	}
	boot, err := readShort(bootIDFile)
	if err != nil {
		return false
	}
	epoch, _, _ := strings.Cut(marker, "\n")
	there, ok := strings.CutPrefix(epoch, boot+"/")
	self, err := ns.Self()
	if !ok || err != nil {
		return false
	}
	defer self.Close()
	here := self.Ref()
	inode := fmt.Sprintf("%d/%d/", here.Dev, here.Ino)
	id, same := strings.CutPrefix(there, inode)
	if same && (here.ID == 0 || id == "0" || id == strconv.FormatUint(here.ID, 10)) {
		return false
	}
	pod, err := c.openNetns()
	if err != nil {
		return false
	}
	pod.Close()
	return true
}

// namesOurs reports whether prevResult names a link of the agent at the root, by
// the link's name alone.
func (c *call) namesOurs() bool {
	link := c.head.HostVeth
	return link != "" && isOf(c.head.Root, link[1:])
}

// named returns the index of the link that prevResult names, if its alias says that
// it is this attachment's; 0 if not, or gone. One that somebody has renamed is found
// by its altname. A prevResult can be wrong, and who is named by mistake must stay
// connected: a link that has nobody's alias, since another program took it away, is
// noted for leadsTo.
func (c *call) named() (uint32, error) {
	if !c.namesOurs() {
		return 0, nil
	}
	link := c.head.HostVeth
	for _, d := range []device{{name: link}, {altname: stamp.AltName(link)}} {
		end, err := look(d)
		if err == unix.ENODEV {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("asking for link %s: %w", link, err)
		}
		s, stamped := stamp.Parse(end.text(unix.IFLA_IFALIAS))
		if id, _ := stamp.LinkID(link); stamped && s.ID == id && s.Is(c.key()) && c.older(s) {
			return end.index(), nil
		}
		if !stamped && c.nobodys == 0 {
			c.nobodys = end.index()
		}
	}
	return 0, nil
}

// leadsTo returns the index of the host's end of the link whose other end is the
// pod's interface, if its alias says that it is this attachment's, or if the alias is
// nobody's and prevResult names the link; else 0. The
// pod is asked for a number alone, and of an alias that is cut off nobody can tell
// whose it is, unless it is the incarnation that prevResult names: so a pod that
// lies has nobody else cut off. The link's name says nothing: somebody may have
// given it another one. Of the key's incarnations it is the one in the pod now,
// unless its ADD began after this DEL, which is not about it then.
//
// What cannot be seen, such as a namespace that is gone, is 0: this is a help for
// runtimes that lost the result of ADD, send none (of configurations below 0.4.0)
// or an old one, and for links that were renamed. Only what could be seen by another
// try, as when there is no file descriptor left, is an error. That the kernel's answer
// is lost (errLost) is none: the pod can bring that about for as long as it likes, as it
// can hide its interface.
func (c *call) leadsTo() (uint32, error) {
	inside, end, err := c.ends()
	if end == nil {
		return 0, passing(err)
	}
	s, stamped := stamp.Parse(end.text(unix.IFLA_IFALIAS))
	if !stamped && end.index() == c.nobodys && end.number(unix.IFLA_LINK) == inside.index() {
		return c.nobodys, nil
	}
	if !stamped || !s.Is(c.key()) || !isOf(c.head.Root, s.Instance) {
		return 0, nil
	}
	if id, _ := stamp.LinkID(c.head.HostVeth); s.Short() && s.ID != id || !c.older(s) {
		return 0, nil
	}
	return end.index(), nil
}

// older reports whether a link of this attachment is of an ADD that began before this
// DEL, and notes one of which that cannot be told.
func (c *call) older(s stamp.Stamp) bool {
	if s.Start > c.started && s.Start <= c.running {
		c.unsure = s.Link()
	}
	return s.Start <= c.started
}

// ends returns both ends of the link whose one end is the pod's interface, or why not.
func (c *call) ends() (inside, host answer, err error) {
	pod, err := c.openNetns() // one whose path hangs cannot be seen either
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
	peer := inside.number(unix.IFLA_LINK)
	if peer == 0 {
		return nil, nil, nil
	}
	host, err = look(device{index: peer})
	return inside, host, err
}

// elsewhere returns a link of this attachment's whose agent runs, and what that one says
// of itself, such as its root. It is asked for a root without an agent alone, which the
// agent cannot have. What cannot be seen in time is none.
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
			s, stamped := stamp.Parse(end.text(unix.IFLA_IFALIAS))
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

// openNetns opens the pod's network namespace. Its path may hang; on a busy node it may
// take a while.
func (c *call) openNetns() (*ns.Netns, error) {
	limit := func() time.Duration { return until(c.deadline) - leastRead }
	return within(limit, "the network namespace's path", func() (*ns.Netns, error) { return ns.Open(c.netns) })
}

// passing returns an error in looking into the pod if another try may not have it,
// and nil if it says that nothing can be seen.
func passing(err error) error {
	for _, e := range []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS, unix.EAGAIN} {
		if errors.Is(err, e) {
			return fmt.Errorf("looking into the pod: %w", err)
		}
	}
	return nil
}

func (c *call) key() stamp.Key {
	return stamp.Key{Network: c.head.Name, ContainerID: c.container, Ifname: c.ifname}
}

// isOf reports whether what begins with an instance's id, or with the part of it
// that links' names have, is of the instance that lives at a root. Where that
// cannot be known, the form decides: 14 characters in an alphabet of 32 are nobody
// else's by chance.
func isOf(dir root.Dir, id string) bool {
	instance, err := within(func() time.Duration { return leastRead }, "the disk", func() (string, error) { return readShort(dir.Instance()) })
	if err != nil || len(instance) < stamp.PrefixLen {
		return true
	}
	return strings.HasPrefix(id, instance[:stamp.PrefixLen])
}
