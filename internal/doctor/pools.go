package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/berth-net/berth/api/client"
	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/overlap"
	"github.com/berth-net/berth/internal/root"
)

// lookPools looks for others that use the pools' addresses, as berthd does before it starts. lookPools
// looks at the pools in force, and at the pools in the file, with which the agent starts next.
func lookPools(_ context.Context, n *Node) Finding {
	c := n.config()
	if a := n.agent(); c.Err != nil && a.pid != 0 && !a.up() { // the agent's flags may name pools
		return unknown(c.Err)
	}
	if c.Err != nil {
		return Finding{Bad, c.Err.Error(), "mend it, and try it with: berthd --check-config"}
	}
	both := n.withFile(*c.Config)
	found, err := n.overlaps(both)
	if err != nil {
		return unknown(err)
	}
	if err := overlap.Refusal(found); err != nil {
		return Finding{Bad, err.Error(), "choose another CIDR in " + n.Root.Config() + ", or remove what uses it"}
	}
	if why := n.agent().status.Refused; why != "" {
		return Finding{Bad, "the agent refuses the configuration, and the former one is in force: " + why, "mend " + n.Root.Config() + ", and: systemctl reload berthd"}
	}
	for _, o := range found {
		if o.Left {
			return Finding{Warn, o.String(), "if that agent never comes back: " + o.Remedy}
		}
	}
	var names []string
	for _, p := range both.Pools {
		var cidrs []string
		for _, cidr := range p.CIDRs {
			cidrs = append(cidrs, cidr.String())
		}
		names = append(names, p.Name+" "+strings.Join(cidrs, ","))
	}
	seen := "nobody else uses " + strings.Join(names, "; ")
	for _, o := range found { // somebody may have taken the pool out of a larger network on purpose
		seen += fmt.Sprintf("; %s leads to more than %s", o.With, o.CIDR)
	}
	return ok("%s", seen)
}

// overlaps returns who else on the node uses addresses of a configuration's pools.
func (n *Node) overlaps(c config.Config) ([]overlap.Overlap, error) {
	conn, err := rtnl.Here()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	self, err := ns.Self()
	if err != nil {
		return nil, err
	}
	defer self.Close()
	return overlap.Find(c.Pools, conn, overlap.Here(n.instance(), self.Ref().Ino))
}

// Refused says why no agent starts with the configuration of a root, as `berthd --check-config`
// does; nil: an agent starts with it, or nobody can tell.
func Refused(dir root.Dir) error {
	c, err := config.Load(dir, config.Flags{})
	if err != nil {
		return err
	}
	n := New(dir, "", "")
	n.agent = func() agent { return agent{err: client.ErrAway} } // Refused does not ask the agent
	found, err := n.overlaps(*c)
	if err != nil {
		return nil
	}
	return overlap.Refusal(found)
}

// withFile adds to a configuration those pools of the file that are not in force. Otherwise the
// pools of an agent that runs would hide these pools until the agent starts next.
func (n *Node) withFile(c config.Config) config.Config {
	file, err := config.Load(n.Root, config.Flags{Remove: true})
	if err != nil {
		return c // then n.config has the error, too
	}
	inForce := c.Pools
	c.Pools = slices.Clone(inForce)
	for _, p := range file.Pools {
		same := false
		for _, q := range inForce {
			same = same || q.Name == p.Name && slices.Equal(q.CIDRs, p.CIDRs)
		}
		if !same {
			c.Pools = append(c.Pools, p)
		}
	}
	return c
}
