package ipam

import (
	"net/netip"
	"time"
)

// Figures are those of one pool.
type Figures struct {
	Pool    string
	Default bool
	CIDRs   []CIDRFigures
}

// CIDRFigures are those of one CIDR of a pool, in addresses.
type CIDRFigures struct {
	CIDR     netip.Prefix
	Draining bool // out of the configuration, and still in use
	Size     uint64
	Used     int
	Resting  int // not free yet
}

// Stats returns the figures of all pools, the default one first, those that
// only drain last. What is neither used nor resting of a CIDR's size is free;
// what is due counts as resting.
func (p *IPAM) Stats(now time.Time) []Figures {
	p.mu.Lock()
	defer p.mu.Unlock()
	pools := make([]Figures, 0, len(p.pools))
	for i, x := range p.pools {
		for _, s := range [...]*space{x.v4, x.v6, x.drain} {
			if s != nil {
				s.settle(nanos(now))
			}
		}
		out := Figures{Pool: x.name, Default: i == 0 && x.configured}
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

func (c *cidr) stats() CIDRFigures {
	return CIDRFigures{
		CIDR:     c.prefix,
		Draining: c.space == c.pool.drain,
		Size:     c.size(),
		Used:     c.used,
		Resting:  c.resting + c.due,
	}
}
