// Package overlap finds pools whose addresses somebody else on the node uses: such a pool takes
// the node's neighbours or its gateway away from it, or its pods are never reached.
package overlap

import (
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/stamp"
)

// Node tells who uses addresses on a node (rtnl.Conn).
type Node interface {
	Uses() ([]rtnl.Use, error)
	Names(indices ...int) ([]string, error)
}

// Overlap is a pool's CIDR that somebody else uses, in part or as a whole.
type Overlap struct {
	Pool string
	CIDR netip.Prefix
	With string // whose it is, in ip's words
	// Within says that only a route to more than the CIDR leads elsewhere. Somebody may have
	// taken the pool out of a larger network on purpose.
	Within bool
}

func (o Overlap) String() string {
	return fmt.Sprintf("pool %s: %s overlaps %s", o.Pool, o.CIDR, o.With)
}

// Find returns the overlaps of pools on a node. Berth's own links and routes are none.
func Find(pools []ipam.PoolConfig, n Node) ([]Overlap, error) {
	uses, err := n.Uses()
	if err != nil {
		return nil, fmt.Errorf("looking for who else uses the pools' addresses: %w", err)
	}
	var found []Overlap
	for _, p := range pools {
		for _, cidr := range p.CIDRs {
			some, err := overlapping(cidr, uses, n)
			if err != nil {
				return nil, err
			}
			for _, o := range some {
				o.Pool = p.Name
				found = append(found, o)
			}
		}
	}
	return found, nil
}

// overlapping returns the overlaps of a CIDR. A network that a link has an address of comes
// once, although the kernel has a route to it, too.
func overlapping(cidr netip.Prefix, uses []rtnl.Use, n Node) (found []Overlap, err error) {
	connected := map[netip.Prefix]bool{}
	for _, u := range uses {
		network := u.Prefix.Masked()
		if !network.Overlaps(cidr) || u.Sort != rtnl.UseAddress && connected[network] {
			continue
		}
		names := []string{""}
		if u.Index != 0 {
			if names, err = n.Names(u.Index); err != nil {
				return nil, err
			}
		}
		if stamp.IsLink(names[0]) {
			continue
		}
		if u.Sort == rtnl.UseAddress {
			connected[network] = true
		}
		found = append(found, Overlap{
			CIDR: cidr, With: say(u, names[0]), Within: u.Sort == rtnl.UseRoute && network.Bits() < cidr.Bits(),
		})
	}
	return found, nil
}

// say names a use in ip's words.
func say(u rtnl.Use, link string) string {
	text := fmt.Sprintf("the %s %s", u.Sort, u.Prefix)
	if u.Sort == rtnl.UseGateway {
		text = fmt.Sprintf("the %s %s", u.Sort, u.Prefix.Addr())
	}
	if u.Via.IsValid() {
		text += " via " + u.Via.String()
	}
	switch {
	case link == "":
	case u.Sort == rtnl.UseAddress:
		text += " of " + link
	default:
		text += " dev " + link
	}
	if u.Table != 0 && u.Table != unix.RT_TABLE_MAIN {
		text += fmt.Sprint(" table ", u.Table)
	}
	return text
}

// Check returns an error that names the overlaps of pools on a node; nil if there are none.
func Check(pools []ipam.PoolConfig, n Node) error {
	found, err := Find(pools, n)
	if err != nil {
		return err
	}
	return Refusal(found)
}

// Refusal returns an error that names overlaps; nil if there are none. A part of a larger
// network that a route leads to is none: nodes in clouds have routes to all private networks.
func Refusal(found []Overlap) error {
	var all []string
	for _, o := range found {
		if !o.Within {
			all = append(all, o.String())
		}
	}
	if len(all) == 0 {
		return nil
	}
	return fmt.Errorf("%s: choose another CIDR, or remove what uses it", strings.Join(all, "; "))
}
