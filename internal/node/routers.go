package node

import (
	"fmt"
	"slices"

	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/stamp"
)

// Hearing returns the names of the links by which the kernel takes router advertisements only until
// it forwards IPv6 from them: accept_ra is 1. No pod's link is among them, since ADD is about to
// set its accept_ra to 0.
func (n *Node) Hearing() ([]string, error) {
	links, err := rtnl.Steady(func() ([]rtnl.Link, error) {
		return n.Conn.Links(func(l rtnl.Link) (bool, error) {
			return l.Conf.IPv6 && l.Conf.AcceptRA == 1 && l.Conf.Forwarding6 == 0 && l.Name != "lo" && !stamp.IsLink(l.Name), nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("looking for links that take router advertisements: %w", err)
	}
	names := make([]string, len(links))
	for i, l := range links {
		names[i] = l.Name
	}
	slices.Sort(names)
	return names, nil
}
