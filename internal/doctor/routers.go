package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
)

// lookRouters reads accept_ra of the links that have routes or addresses by router
// advertisements. If a program reads advertisements in the kernel's place, accept_ra is 0.
func lookRouters(_ context.Context, n *Node) Finding {
	c := n.config()
	if c.Err != nil {
		return unknown(fmt.Errorf("whether the agent turns IPv6 forwarding on: %w", c.Err))
	}
	if _, v6 := n.families(); !v6 {
		return ok("no pool has IPv6: the agent leaves IPv6 forwarding alone")
	}
	links, err := advertised()
	if err != nil {
		return unknown(err)
	}
	// deaf are links that take no advertisements, because they forward; later are links that will take none
	// once they forward; names are the sysctls of both.
	var all, deaf, later, names []string
	for _, link := range links {
		accepts, err := conf6(link, "accept_ra")
		if err != nil {
			return unknown(err)
		}
		forwards, err := conf6(link, "forwarding")
		if err != nil {
			return unknown(err)
		}
		name := "ipv6/conf/" + link + "/accept_ra"
		text := dotted(name) + " = " + accepts
		all = append(all, text)
		switch {
		case accepts != "1":
		case forwards != "0":
			deaf, names = append(deaf, text), append(names, name)
		case !c.Config.Forwarding:
			later, names = append(later, text), append(names, name)
		}
	}
	switch {
	case len(links) == 0:
		return ok("the node has no route or address by router advertisements")
	case len(deaf) > 0:
		return Finding{Bad, "the node forwards, and takes no more router advertisements: " + strings.Join(append(deaf, later...), ", "), set(names, "2")}
	case len(later) > 0:
		return Finding{Warn, "the node stops to take router advertisements once somebody turns IPv6 forwarding on: " + strings.Join(later, ", "), set(names, "2")}
	}
	return ok("%s", strings.Join(all, ", "))
}

// advertised returns the names of the links that have routes or addresses by router
// advertisements.
func advertised() ([]string, error) {
	c, err := rtnl.Here()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	indices, err := c.Advertised()
	if err != nil {
		return nil, err
	}
	return c.Names(indices...)
}

// conf6 reads a sysctl of IPv6 of a link; "0" if the link has none, or is gone.
func conf6(link, name string) (string, error) {
	text, err := ns.Sysctl("ipv6/conf/" + link + "/" + name)
	if errors.Is(err, fs.ErrNotExist) {
		return "0", nil
	}
	return text, err
}
