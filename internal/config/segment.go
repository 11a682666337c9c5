package config

import (
	"fmt"
	"net/netip"

	"go.yaml.in/yaml/v3"

	"github.com/berth-net/berth/internal/ipam"
)

// fileSegment is a pool's key segment.
type fileSegment struct {
	Subnets  said[[]said[string]]
	Gateways said[[]said[string]]
}

func takeSegment(s *said[fileSegment]) take {
	return func(r *reader, n *yaml.Node) {
		f := new(fileSegment)
		r.keys(n, "{subnets: [192.168.1.0/24], gateways: [192.168.1.1]}", map[string]take{
			"subnets":  list(&f.Subnets, "[192.168.1.0/24]", scalar),
			"gateways": list(&f.Gateways, "[192.168.1.1]", scalar),
		})
		*s = said[fileSegment]{f, n.Line}
	}
}

// segment returns the segment of a pool. Validate has to check it with the pool.
func (f *fileSegment) segment(pool string) (*ipam.Segment, error) {
	key := fmt.Sprintf("pool %.80s: segment", pool)
	subnets, err := parseCIDRs(key+".subnets", f.Subnets.or(nil))
	if err != nil {
		return nil, err
	}
	out := &ipam.Segment{Subnets: subnets}
	for _, s := range f.Gateways.or(nil) {
		g, err := netip.ParseAddr(s.or(""))
		if err != nil || g.Zone() != "" || g.Is4In6() {
			return nil, s.wrong(fmt.Errorf("%s.gateways: %.80q is no address: want one such as 192.168.1.1", key, s.or("")))
		}
		out.Gateways = append(out.Gateways, g)
	}
	return out, nil
}
