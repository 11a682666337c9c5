package adopt

import (
	"errors"
	"fmt"

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
		return gone, ns.Visible(f.Netns)
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
