package ipam

import (
	"strconv"
	"time"

	"github.com/berth-net/berth/api"
)

// Stats returns the figures of all pools, the default one first, those that
// only drain last. What is neither used nor resting of a CIDR's size is free;
// what is due counts as resting.
func (p *IPAM) Stats(now time.Time) []api.Pool {
	p.mu.Lock()
	defer p.mu.Unlock()
	pools := make([]api.Pool, 0, len(p.pools))
	for i, x := range p.pools {
		for _, s := range [...]*space{x.v4, x.v6, x.drain} {
			if s != nil {
				s.settle(nanos(now))
			}
		}
		out := api.Pool{Name: x.name, Default: i == 0 && x.configured, CIDRs: []api.PoolCIDR{}}
		if x.configured {
			for _, prefix := range p.config[i].CIDRs {
				out.CIDRs = append(out.CIDRs, p.table.find(prefix.Addr()).stats())
			}
		}
		if x.drain != nil {
			for _, c := range x.drain.cidrs {
				out.CIDRs = append(out.CIDRs, c.stats())
			}
		}
		pools = append(pools, out)
	}
	return pools
}

func (c *cidr) stats() api.PoolCIDR {
	return api.PoolCIDR{
		CIDR:     c.prefix.String(),
		Draining: c.space == c.pool.drain,
		Size:     strconv.FormatUint(c.size(), 10),
		Used:     c.used,
		Resting:  c.resting + c.due,
	}
}
