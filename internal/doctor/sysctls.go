package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/stamp"
)

// dotted writes the name of a sysctl below net as sysctl(8) does. A link's name may have dots,
// which sysctl writes as slashes.
func dotted(name string) string {
	return "net." + strings.NewReplacer("/", ".", ".", "/").Replace(name)
}

// forGood is a shell's comment, so that people can paste a fix.
const forGood = " # in /etc/sysctl.d for good"

// set is the command that sets sysctls.
func set(names []string, value string) string {
	for i, name := range names {
		names[i] = dotted(name) + "=" + value
	}
	return "sysctl -w " + strings.Join(names, " ") + forGood
}

// lookForwarding reads the sysctls that let the node forward, of the families that pools have.
func lookForwarding(_ context.Context, n *Node) Finding {
	c := n.config()
	if c.Err != nil {
		return unknown(fmt.Errorf("which families the pools have: %w", c.Err))
	}
	v4, v6 := n.families()
	var on, off, names []string
	for _, s := range []struct {
		name string
		used bool
	}{{"ipv4/ip_forward", v4}, {"ipv6/conf/all/forwarding", v6}} {
		if !s.used {
			continue
		}
		value, err := ns.Sysctl(s.name)
		if err != nil {
			return unknown(err)
		}
		if text := dotted(s.name) + " = " + value; value == "0" {
			off, names = append(off, text), append(names, s.name)
		} else {
			on = append(on, text)
		}
	}
	links := false // only single links do not forward; the agent does not change the sysctls of links
	if len(off) == 0 && v4 {
		var err error
		if off, names, err = unforwarded(); err != nil {
			return unknown(err)
		}
		links = len(off) > 0
	}
	f := Finding{Bad, strings.Join(off, ", "), set(names, "1")}
	switch {
	case len(off) == 0:
		return ok("%s", strings.Join(on, ", "))
	case links:
	case c.Config.Forwarding && !n.agent().up():
		f.Verdict, f.Fix = Warn, "the agent turns forwarding on when it starts"
	case !c.Config.Forwarding:
		f.Fix += "; or leave that to the agent: forwarding: true in " + n.Root.Config()
	}
	return f
}

// unforwarded returns the sysctls that keep single uplinks from forwarding: off has each sysctl with
// its value, names has the names alone. Answers to pods come in by uplinks. unforwarded looks at IPv4
// alone: for IPv6 only the sysctl of conf/all decides.
func unforwarded() (off, names []string, err error) {
	links, err := uplinks()
	for _, link := range links {
		name := "ipv4/conf/" + link + "/forwarding"
		value, err := ns.Sysctl(name)
		if errors.Is(err, fs.ErrNotExist) { // the link has gone since
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		if value == "0" {
			off, names = append(off, dotted(name)+" = 0"), append(names, name)
		}
	}
	return off, names, err
}

// uplinks returns the names of the links to which default routes lead, each once.
func uplinks() ([]string, error) {
	c, err := rtnl.Here()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	indices, err := c.Uplinks()
	if err != nil {
		return nil, err
	}
	slices.Sort(indices)
	return c.Names(slices.Compact(indices)...)
}

// podLinks returns the names of the pods' links by their indices.
func podLinks() (map[int]string, error) {
	c, err := rtnl.Here()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	pods := map[int]string{}
	_, err = c.Veths(func(l rtnl.Link) (bool, error) {
		if stamp.IsLink(l.Name) {
			pods[l.Index] = l.Name
		}
		return false, nil
	})
	return pods, err
}

// conf reads a sysctl of IPv4 of a link; 0 if the link has none.
func conf(link, name string) (int, error) {
	text, err := ns.Sysctl("ipv4/conf/" + link + "/" + name)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(text)
}

// lookReversePath reads rp_filter of the uplinks. The kernel applies the larger of two values:
// conf/all's and the link's. A pod's packets come by the link to which the pod's address is routed, so
// that a strict rp_filter of pods' links drops nothing.
func lookReversePath(_ context.Context, n *Node) Finding {
	uplinks, err := uplinks()
	if err != nil {
		return unknown(err)
	}
	all, err := conf("all", "rp_filter")
	if err != nil {
		return unknown(err)
	}
	var strict, names []string
	for _, link := range uplinks {
		own, err := conf(link, "rp_filter")
		if err != nil {
			return unknown(err)
		}
		if max(all, own) == 1 {
			strict, names = append(strict, link), append(names, "ipv4/conf/"+link+"/rp_filter")
		}
	}
	seen := fmt.Sprintf("%s = %d", dotted("ipv4/conf/all/rp_filter"), all)
	if len(strict) == 0 || len(uplinks) < 2 {
		return ok("%s; uplinks: %s; strict: %s", seen, orNone(uplinks), orNone(strict))
	}
	return Finding{Warn, fmt.Sprintf("%s; the node has several uplinks, and is strict with %s", seen, strings.Join(strict, ", ")), set(names, "2")}
}

// lookLocalnet reads route_localnet of all uplinks and pods' links. The kernel applies the value of
// conf/all to every link.
func lookLocalnet(_ context.Context, n *Node) Finding {
	uplinks, err := uplinks()
	if err != nil {
		return unknown(err)
	}
	pods, err := podLinks()
	if err != nil {
		return unknown(err)
	}
	var on []string
	for _, link := range slices.Concat([]string{"all", "default"}, uplinks, slices.Sorted(maps.Values(pods))) {
		value, err := conf(link, "route_localnet")
		if err != nil {
			return unknown(err)
		}
		if value != 0 {
			on = append(on, "ipv4/conf/"+link+"/route_localnet")
		}
	}
	if len(on) == 0 {
		return ok("%s = 0, as of all uplinks and pods' links", dotted("ipv4/conf/all/route_localnet"))
	}
	seen := dotted(on[0]) + " = 1"
	if len(on) > 1 {
		seen += fmt.Sprintf(", and %d more", len(on)-1)
	}
	return Finding{Warn, seen, set(on, "0") + "; if kube-proxy turned it on, give it --iptables-localhost-nodeports=false"}
}

// These say how many connections the check assumes for pods, and when the connection tracking table
// counts as full.
const (
	usualPods   = 250 // how many pods the check takes a node to have, if its pools have so many addresses
	perPod      = 256 // connections
	nearlyFull  = 0.75
	almostAllOf = 0.95
)

func lookConntrack(_ context.Context, n *Node) Finding {
	var have [2]int
	for i, name := range []string{"nf_conntrack_count", "nf_conntrack_max"} {
		text, err := ns.Sysctl("netfilter/" + name)
		if errors.Is(err, fs.ErrNotExist) {
			return Finding{Verdict: Unknown, Seen: "the kernel has not loaded nf_conntrack yet", Fix: "the agent loads it when it starts"}
		}
		if err == nil {
			have[i], err = strconv.Atoi(text)
		}
		if err != nil {
			return unknown(err)
		}
	}
	limit := -1
	if c := n.config().Config; c != nil {
		limit = c.Connections
	}
	return judgeConntrack(have[0], have[1], n.mostPods(), limit)
}

// mostPods returns how many pods connection tracking should have room for.
func (n *Node) mostPods() int {
	attached, room := 0, new(big.Int)
	for _, count := range n.agent().status.Attachments {
		attached += count
	}
	for _, p := range n.pools() {
		// A pod has an address of each family: the largest CIDR of the pools decides.
		if size := new(big.Int).Lsh(big.NewInt(1), uint(p.Addr().BitLen()-p.Bits())); size.Cmp(room) > 0 {
			room = size
		}
	}
	if !room.IsInt64() || room.Int64() > usualPods {
		room = big.NewInt(usualPods)
	}
	return max(attached, int(room.Int64()))
}

// judgeConntrack judges a table that has count entries, and can have `most`, for a number of pods.
// Each pod may have at most limit connections (0: as many as it likes; -1: nobody knows how many).
func judgeConntrack(count, most, pods, limit int) Finding {
	seen := fmt.Sprintf("%d of %d entries", count, most)
	need := pods * perPod
	more := fmt.Sprintf("sysctl -w net.netfilter.nf_conntrack_max=%d"+forGood, max(need, 2*most, 2*limit))
	switch {
	case float64(count) > almostAllOf*float64(most):
		return Finding{Bad, seen + ": it is full", more}
	case float64(count) > nearlyFull*float64(most):
		return Finding{Warn, seen + ": it is nearly full, and the agent deletes what pods have too many of", more}
	case limit == 0 || float64(limit) >= nearlyFull*float64(most):
		return Finding{Warn, fmt.Sprintf("%s, and one pod may have %s", seen, orAll(limit)), more + ", or a lower connections: in berthd.yaml"}
	case need > most:
		return Finding{Warn, fmt.Sprintf("%s: %d pods would have %d each", seen, pods, most/pods), more}
	}
	return ok("%s", seen)
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

func orAll(limit int) string {
	if limit == 0 {
		return "all of them"
	}
	return strconv.Itoa(limit)
}
