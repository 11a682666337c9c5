package health

import (
	"cmp"
	"slices"

	"github.com/berth-net/berth/api"
)

// View shows what is known of the ways to other nodes.
func (h *Health) View() api.ClusterHealth {
	h.mu.Lock()
	defer h.mu.Unlock()
	v := api.ClusterHealth{Enabled: h.Enabled, Node: h.Node, Addresses: []string{}, Interval: h.every, Probes: []api.HealthProbe{}}
	if !h.Enabled {
		return v
	}
	if h.trouble != nil {
		v.Error = h.trouble.Error()
	} else if h.place == nil {
		v.Error = "the responder is being attached"
	}
	if h.place != nil {
		for _, a := range h.place.addresses.Addrs() {
			v.Addresses = append(v.Addresses, a.String())
		}
	}
	for _, w := range h.ways() {
		p := api.HealthProbe{Node: w.node, Path: w.path, Family: "IPv6", Address: w.address.String()}
		if w.address.Is4() {
			p.Family = "IPv4"
		}
		if r := h.results[w]; r != nil {
			p.Reachable, p.Latency, p.Tried, p.Answered = r.failures == 0, r.latency, r.tried, r.answered
			p.Failures, p.Error = r.failures, r.err
		}
		v.Probes = append(v.Probes, p)
	}
	slices.SortFunc(v.Probes, func(a, b api.HealthProbe) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Path, b.Path), cmp.Compare(a.Family, b.Family), cmp.Compare(a.Address, b.Address))
	})
	return v
}
