package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/stamp"
)

// gone reports whether nobody can be reached through a link of this attachment because the
// attachment has no link. The plugin asks gone after a cut that has ended, and found no link. That
// neither name leads to the link is no proof: somebody may have renamed the link and removed its
// altname. So the pod has to be gone, too, and of all links of the node none may be the pod's.
//
// gone lists the node's links, which no other step of a verb does. Where gone reports true, the plugin
// spares correct, which writes a file, durably. A DEL with a prevResult that cuts its pod off needs
// neither gone nor correct.
func (c *call) gone() bool {
	if c.nobodys != 0 {
		return false
	}
	switch c.servedLast() {
	case unknown, elsewhere: // then the pod's link may be in another network namespace
		return false
	case here:
		if !c.noPod {
			return false
		}
	case never: // mostly after a reboot, when DEL may come without a path, or with a path that another pod's namespace has by now; but the marker may also be lost
		if !c.noPod && c.netns != "" {
			return false
		}
	}
	limit := func() time.Duration { return leastRead }
	none, err := within(limit, "the kernel", c.noLink)
	return err == nil && none
}

// mostLinks is how many links noLink looks at. Listing more takes longer than a call of correct: the
// kernel's work grows with the square of the pods, and takes 1.2 ms for 250 of them.
const mostLinks = 256

// noLink reports whether the node has no link with the alias of this attachment, whichever
// instance or ADD the alias is of, and no link of the agent's groups whose alias is nobody's. noLink
// reports false, too, if there are more than mostLinks links.
func (c *call) noLink() (bool, error) {
	groups, err := stamp.GroupsOf(c.head.HostVeth[1:])
	if err != nil {
		return false, err
	}
	ports, err := stamp.PortGroupsOf(c.head.HostVeth[1:])
	if err != nil {
		return false, err
	}
	none, seen := true, 0
	err = links(func(link answer) bool {
		seen++
		s, stamped := stamp.ParseEnd(link.text(unix.IFLA_IFALIAS))
		group := link.number(unix.IFLA_GROUP)
		may := stamped && s.Is(c.key()) || !stamped && (groups.Has(group) || ports.Has(group))
		none = !may && seen <= mostLinks
		return none
	})
	return none, err
}

// served says where the agent of a root served last.
type served int

const (
	unknown   served = iota
	never            // not in this boot, or its marker is lost
	here             // in this boot, in the plugin's network namespace
	elsewhere        // in this boot, in another network namespace
)

// servedLast reads the agent's marker.
func (c *call) servedLast() served {
	limit := func() time.Duration { return leastRead }
	marker, err := within(limit, "the disk", func() (string, error) { return readShort(c.head.Root.Epoch()) })
	if errors.Is(err, unix.ENOENT) {
		return never
	}
	if err != nil {
		return unknown
	}
	boot, err := readShort(bootIDFile)
	if err != nil {
		return unknown
	}
	epoch, _, _ := strings.Cut(marker, "\n")
	in, there, ok := strings.Cut(epoch, "/")
	switch {
	case !ok:
		return unknown
	case in != boot:
		return never
	}
	self, err := ns.Self()
	if err != nil {
		return unknown
	}
	defer self.Close()
	ref := self.Ref()
	id, same := strings.CutPrefix(there, fmt.Sprintf("%d/%d/", ref.Dev, ref.Ino))
	if same && (ref.ID == 0 || id == "0" || id == strconv.FormatUint(ref.ID, 10)) {
		return here
	}
	return elsewhere
}
