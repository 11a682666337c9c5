package adopt

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/berth-net/berth/internal/former"
	"github.com/berth-net/berth/internal/kernel/ns"
)

// place is where an attachment is. Its path is "" if nobody has written down which network namespace the pod had.
type place struct {
	ref  ns.Ref
	gone bool // the pod is certainly gone: ref is no more than a path
}

// places looks for the network namespaces of a container's attachments. gone is true if one of them is gone: all are of one pod.
//
// A pod that lives must not count as gone, or its plugins would give its address to another one. So an error says that nobody can tell.
func (c *container) places(lacking []former.Attachment) (all []place, gone bool, err error) {
	for _, f := range lacking {
		p, err := c.place(f)
		if err != nil {
			return nil, false, err
		}
		all, gone = append(all, p), gone || p.gone
	}
	return all, gone, nil
}

func (c *container) place(f former.Attachment) (place, error) {
	if f.Netns == "" {
		return place{}, nil
	}
	gone := place{ns.Ref{Path: f.Netns}, true}
	at, err := ns.OpenSoon(f.Netns)
	switch {
	case errors.Is(err, ns.ErrGone), errors.Is(err, ns.ErrNotNetns):
		return gone, visible(f.Netns)
	case err != nil:
		return place{}, err
	}
	defer at.Close()
	if c.Netns.Same(at.Ref()) {
		return place{}, fmt.Errorf("%s is the node's own network namespace by now: nobody can tell whether the pod is gone", f.Netns)
	}
	for _, e := range c.index.Slot(at.Ref(), f.Ifname) {
		switch {
		case e.Record.ContainerID == f.Container || !e.Owner.Wanted():
		case e.Record.Former:
			return place{}, fmt.Errorf("%s is the network namespace of container %s, too: nobody can tell whose it is", f.Netns, e.Record.ContainerID)
		default: // the runtime has made another pod there
			return gone, nil
		}
	}
	return place{ref: at.Ref()}, nil
}

// initialPIDs is what /proc/self/ns/pid leads to for processes that see all others (PROC_PID_INIT_INO of include/linux/proc_ns.h).
const initialPIDs = "pid:[4026531836]"

// visible returns an error unless nothing at a path says that nothing is there on the node: an agent in a container may not see what its
// runtime sees.
func visible(path string) error {
	if strings.HasPrefix(path, "/proc/") {
		if own, err := os.Readlink("/proc/self/ns/pid"); err != nil || own != initialPIDs {
			return fmt.Errorf("the agent sees no network namespace at %s, and it does not see the node's processes: run berthd where it does", path)
		}
		return nil
	}
	if _, err := os.Stat(filepath.Dir(path)); err != nil {
		return fmt.Errorf("nobody can tell whether the pod's network namespace, %s, is gone, because its folder is not there, either: %w", path, err)
	}
	return nil
}
