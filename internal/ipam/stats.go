package ipam

import (
	"net/netip"
	"time"
)

// Figures are the figures of one pool.
type Figures struct {
	Pool    string
	Default bool
	CIDRs   []CIDRFigures
}

// CIDRFigures are the figures of one CIDR of a pool; they count addresses.
type CIDRFigures struct {
	CIDR     netip.Prefix
	Draining bool // the configuration no longer has the CIDR, but addresses of it are still in use or rest
	Size     uint64
	Used     int
	Resting  int // in cooldown or due
}

// Stats returns the figures of all pools: the default pool first, and pools that only drain
// last. Addresses of a CIDR's size that are neither used nor resting are free.
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
