package show

import (
	"strconv"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/ipam"
)

// Pools shows the figures of pools, in their order.
func Pools(all []ipam.Figures) []api.Pool {
	pools := make([]api.Pool, len(all))
	for i, p := range all {
		pools[i] = api.Pool{Name: p.Pool, Default: p.Default, CIDRs: []api.PoolCIDR{}}
		for _, c := range p.CIDRs {
			pools[i].CIDRs = append(pools[i].CIDRs, api.PoolCIDR{
				CIDR: c.CIDR.String(), Draining: c.Draining, Size: strconv.FormatUint(c.Size, 10), Used: c.Used, Resting: c.Resting,
			})
		}
	}
	return pools
}
