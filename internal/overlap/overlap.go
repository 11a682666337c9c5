// Package overlap finds pools whose addresses somebody else on the node uses: such a pool makes the
// node lose its neighbours or its gateway, or nobody reaches the pool's pods.
package overlap

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/internal/stamp"
)

// Node tells who uses addresses on a node (rtnl.Conn).
type Node interface {
	Uses() ([]rtnl.Use, error)
	Names(indices ...int) ([]string, error)
}

// Agents tells the agents of a node apart.
type Agents struct {
	Self string // instance of the agent whose pools are looked at; "" if it has none yet
	// Running returns what an agent says of itself that lives here, and whose instance's id begins
	// with `instance`; false if there is no such agent.
	Running func(instance string) (who string, ok bool)
}

// Here returns the agents of a network namespace, self included.
func Here(self string, netns uint64) Agents {
	return Agents{self, func(instance string) (string, bool) { return root.LockedBy(instance, netns) }}
}

// Overlap is a pool's CIDR that somebody else uses, in part or as a whole.
type Overlap struct {
	Pool string
	CIDR netip.Prefix
	With string // what uses addresses of the CIDR, in ip's words
	// Within says that With is only a route to a network that contains the CIDR and more. Somebody
	// may have taken the pool out of this larger network on purpose.
	Within bool
	// Left says that With belongs to another agent, which does not run now. That agent may never
	// come back, and must not keep others from starting.
	Left   bool
	Remedy string // how to remove what is Left
}

func (o Overlap) String() string {
	return fmt.Sprintf("pool %s: %s overlaps %s", o.Pool, o.CIDR, o.With)
}

// Find returns the overlaps of an agent's pools on a node. The agent's own links and routes are no
// overlaps, but other agents' links and routes are.
func Find(pools []ipam.PoolConfig, n Node, agents Agents) ([]Overlap, error) {
	uses, err := n.Uses()
	if err != nil {
		return nil, fmt.Errorf("looking for who else uses the pools' addresses: %w", err)
	}
	var found []Overlap
	for _, p := range pools {
		for _, cidr := range p.CIDRs {
			of := uses
			if p.Segment != nil {
				of = slices.DeleteFunc(slices.Clone(uses), func(u rtnl.Use) bool { return leadsToSegment(cidr, u) })
			}
			some, err := overlapping(cidr, of, n, agents)
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

// leadsToSegment reports whether a use takes no address from a pool whose CIDR is of a segment: the node may be on the segment with
// another address, and have routes to it. What is in the CIDR itself does take some: an address of the node, a gateway, a route to a part.
func leadsToSegment(cidr netip.Prefix, u rtnl.Use) bool {
	switch u.Sort {
	case rtnl.UseAddress:
		return !cidr.Contains(u.Prefix.Addr())
	case rtnl.UseRoute:
		return u.Agent == "" && u.Prefix.Bits() <= cidr.Bits()
	}
	return false
}

// overlapping returns the overlaps of a CIDR. A network that a link has an address of comes
// once, although the kernel has a route to it, too.
func overlapping(cidr netip.Prefix, uses []rtnl.Use, n Node, agents Agents) (found []Overlap, err error) {
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
		agent := u.Agent
		for _, of := range []func(string) (string, bool){stamp.OfLink, stamp.OfTunnel} {
			if instance, ok := of(names[0]); ok {
				agent = instance
			}
		}
		if agent != "" && strings.HasPrefix(agents.Self, agent) {
			continue
		}
		if u.Sort == rtnl.UseAddress {
			connected[network] = true
		}
		o := Overlap{CIDR: cidr, With: say(u, names[0])}
		if agent == "" {
			o.Within = u.Sort == rtnl.UseRoute && network.Bits() < cidr.Bits()
		} else if who, ok := agents.Running(agent); ok {
			o.With += fmt.Sprintf(" of another agent (%s)", who)
		} else {
			o.Left, o.Remedy = true, remedy(u)
			o.With += fmt.Sprintf(" of another agent, which does not run (instance %s...)", agent)
		}
		found = append(found, o)
	}
	return found, nil
}

// remedy says how to remove what an agent has left, if the agent never comes back.
func remedy(u rtnl.Use) string {
	text := "berthd --root ITS-ROOT --remove"
	if metric, err := stamp.MetricOf(u.Agent); err == nil {
		text += fmt.Sprintf("; or, if its root is lost: ip route del unreachable %s metric %d, and nft delete table inet %s...", u.Prefix, metric, stamp.Table(u.Agent))
	}
	return text
}

// say names a use in ip's words.
func say(u rtnl.Use, link string) string {
	text := fmt.Sprintf("the %s %s", u.Sort, u.Prefix)
	if u.Agent != "" {
		return "the pool's " + text[len("the "):]
	}
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
func Check(pools []ipam.PoolConfig, n Node, agents Agents) error {
	found, err := Find(pools, n, agents)
	if err != nil {
		return err
	}
	return Refusal(found)
}

// Refusal returns an error that names overlaps; nil if there are none. A pool inside a larger
// routed network is no overlap: nodes in clouds have routes to all private networks. Things that a
// stopped agent left are no overlap either: without that agent's root nobody could remove them as
// Berth's.
func Refusal(found []Overlap) error {
	var all []string
	for _, o := range found {
		if !o.Within && !o.Left {
			all = append(all, o.String())
		}
	}
	if len(all) == 0 {
		return nil
	}
	return fmt.Errorf("%s: choose another CIDR, or remove what uses it", strings.Join(all, "; "))
}
