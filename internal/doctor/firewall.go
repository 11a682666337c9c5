package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"strings"

	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/root"
)

// lookFirewall names the chains of others that drop what pods send beyond the node.
func lookFirewall(_ context.Context, n *Node) Finding {
	pools := n.pools()
	if len(pools) == 0 { // without pools, these addresses stand for pods of each family
		pools = []netip.Prefix{netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("2001:db8::/64")}
	}
	uplinks, err := uplinks()
	if err != nil {
		return unknown(err)
	}
	found, err := nft.Barriers(nft.Sender{Instance: n.instance(), Pools: pools, Uplinks: uplinks, Name: linkName})
	if err != nil {
		return unknown(err)
	}
	if len(found) == 0 {
		return ok("no table of others drops what pods send")
	}
	f := Finding{Verdict: Warn}
	var seen, fixes []string
	for _, b := range found {
		family, does := "IPv4", "may drop"
		if b.IPv6 {
			family = "IPv6"
		}
		if b.Sure {
			f.Verdict, does = Bad, "drops"
		}
		seen = append(seen, fmt.Sprintf("%s %s what pods send by %s", b.BaseChain, does, family))
		fixes = append(fixes, passage(b, n.poolsOf(b.IPv6)))
	}
	f.Seen, f.Fix = strings.Join(seen, "; "), strings.Join(fixes, "; ")
	return f
}

// passage says how to let pods through a chain, in the words of the program that made the chain.
func passage(b nft.Barrier, pools []string) string {
	var all []string
	for _, pool := range pools {
		iptables, word := "iptables", "ip"
		if b.IPv6 {
			iptables, word = "ip6tables", "ip6"
		}
		switch {
		case b.Table == "firewalld":
			all = append(all, "firewall-cmd --permanent --zone=trusted --add-source="+pool)
		case b.Table == "filter" && b.Name == "FORWARD": // iptables made it, for Docker or ufw
			all = append(all, fmt.Sprintf("%s -I FORWARD -s %s -j ACCEPT; %s -I FORWARD -d %s -j ACCEPT", iptables, pool, iptables, pool))
		default:
			insert := fmt.Sprintf("nft insert rule %s %s %s %s", b.Family, b.Table, b.Name, word)
			all = append(all, fmt.Sprintf("%s saddr %s accept; %s daddr %s accept", insert, pool, insert, pool))
		}
	}
	if b.Table == "firewalld" {
		all = append(all, "firewall-cmd --reload")
	}
	return strings.Join(all, "; ")
}

// poolsOf returns the pools' CIDRs of a family as rules have them.
func (n *Node) poolsOf(v6 bool) (all []string) {
	for _, p := range n.pools() {
		if p.Addr().Is6() == v6 {
			all = append(all, p.String())
		}
	}
	if len(all) == 0 {
		all = []string{"POOL"}
	}
	return all
}

// instance returns the agent's instance; "" if no agent has run here.
func (n *Node) instance() string {
	if a := n.agent(); a.status.Instance != "" {
		return a.status.Instance
	}
	raw, _ := root.ReadFile(n.Root.Instance())
	if id := strings.TrimSpace(string(raw)); len(id) == len(nobody) {
		return id
	}
	return ""
}

func linkName(index int) (string, error) {
	c, err := rtnl.Here()
	if err != nil {
		return "", err
	}
	defer c.Close()
	names, err := c.Names(index)
	if err != nil || names[0] == "" {
		return "", errors.Join(err, fmt.Errorf("there is no link %d", index))
	}
	return names[0], nil
}

// lookLegacy looks at the tables that iptables makes in its own backend of the kernel.
func lookLegacy(ctx context.Context, n *Node) Finding {
	var seen, fixes []string
	v4, v6 := n.families()
	for _, f := range []struct {
		names, program string
		used, v6       bool
	}{{"ip_tables_names", "iptables-legacy", v4 || !v6, false}, {"ip6_tables_names", "ip6tables-legacy", v6, true}} {
		tables, err := os.ReadFile("/proc/thread-self/net/" + f.names)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return unknown(err)
		}
		if !f.used || !strings.Contains("\n"+string(tables), "\nfilter\n") {
			continue
		}
		out, err := exec.CommandContext(ctx, f.program+"-save", "-t", "filter").Output()
		if errors.Is(err, exec.ErrNotFound) {
			return Finding{Verdict: Unknown, Seen: f.program + " has a filter table, and its program is not here to show the rules", Fix: "see what the table's forward chain does: install " + f.program}
		}
		if err != nil {
			return unknown(fmt.Errorf("running %s-save: %w", f.program, err))
		}
		if pools := n.poolsOf(f.v6); drops(string(out), pools) {
			seen = append(seen, f.program+" drops what no rule of its chain FORWARD accepts, and no rule names a pool")
			for _, pool := range pools {
				fixes = append(fixes, fmt.Sprintf("%s -I FORWARD -s %s -j ACCEPT; %s -I FORWARD -d %s -j ACCEPT", f.program, pool, f.program, pool))
			}
		}
	}
	if len(seen) > 0 {
		return Finding{Bad, strings.Join(seen, "; "), strings.Join(fixes, "; ")}
	}
	return ok("legacy iptables drops nothing that is forwarded by its policy")
}

// drops reports whether a table that iptables-save printed drops what is forwarded by its
// policy, and has no rule that accepts everything, or a pool.
func drops(saved string, pools []string) bool {
	policy := false
	for line := range strings.Lines(saved) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, ":FORWARD DROP ") {
			policy = true
		}
		if !strings.HasPrefix(line, "-A ") || !strings.HasSuffix(line, "-j ACCEPT") {
			continue
		}
		if line == "-A FORWARD -j ACCEPT" {
			return false
		}
		for _, pool := range pools {
			if strings.Contains(line, " -s "+pool+" ") {
				return false
			}
		}
	}
	return policy
}
