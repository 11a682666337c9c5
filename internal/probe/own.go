package probe

import (
	"net/netip"
	"slices"

	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/stamp"
)

// own returns what the node saw of a flight's packet and its answer. Others can send packets of the
// same ID: a pod that gets an echo can repeat its token, and every pod can guess a port. So a
// packet counts only if it came from where the probe's packet had to come, and an answer only if it
// went from the asked machine to the asking one.
func (p *prober) own(f flight, id uint32, all []nft.Sight) (own []nft.Sight) {
	from := 0 // the node itself
	if f.inPod {
		from = p.indexOf(p.Pod.Host)
	}
	// Rules may have given the packet other addresses, and masquerade gives an echo another
	// identifier. The answer comes with the new addresses and the new identifier.
	ids, askers, asked := []uint32{id}, []netip.Addr{f.from}, []netip.Addr{f.to}
	for _, s := range all {
		if s.Reply || s.ID != id || s.In != from || s.To != f.to || f.from.IsValid() && s.From != f.from {
			continue
		}
		own = append(own, s)
		if s.Drop == nil {
			ids, askers, asked = append(ids, s.Now.ID), append(askers, s.Now.From), append(asked, s.Now.To)
		}
	}
	for _, s := range all {
		if s.Reply && slices.Contains(ids, s.ID) && slices.Contains(askers, s.To) && slices.Contains(asked, s.From) && p.answers(f, s) {
			own = append(own, s)
		}
	}
	return own
}

// answers reports whether an answer has come by a link by which it may come.
func (p *prober) answers(f flight, s nft.Sight) bool {
	switch {
	case s.In == 0:
		return slices.Contains(f.back, "output")
	case f.toPod != nil:
		return s.In == p.indexOf(f.toPod.Host)
	}
	// From outside an answer may come by a link that the node would not send by, but not by a pod's link.
	var way rtnl.Way
	if err := p.node.Do(rtnl.GetWay(s.From, netip.Addr{}, 0, &way)); err == nil && way.Index == s.In {
		return true
	}
	var in rtnl.Link
	err := p.node.Do(rtnl.GetLinkAt(s.In, &in))
	_, isPods := stamp.Parse(in.Alias)
	return err == nil && !isPods && !stamp.IsLink(in.Name) && in.Given == ""
}

// indexOf returns the index of a link that a pod was given, also if it was renamed; -1 if there is none.
func (p *prober) indexOf(name string) int {
	link, err := p.node.Link(name)
	if err != nil {
		return -1
	}
	return link.Index
}
