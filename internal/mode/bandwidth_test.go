package mode_test

import (
	"math"
	"testing"

	"github.com/berth-net/berth/internal/cni/netconf"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/mode"
)

// A bucket has the burst that was asked for, but never more than the rate sends in 100 ms, or one packet.
func TestShape(t *testing.T) {
	for asked, want := range map[netconf.Rate]rtnl.Rate{
		{}:                                            {},
		{Rate: 8_000_000, Burst: 400_000}:             {Rate: 1_000_000, Burst: 50_000},
		{Rate: 8_000_000, Burst: 800_000}:             {Rate: 1_000_000, Burst: 100_000},
		{Rate: 8_000_000, Burst: 800_008}:             {Rate: 1_000_000, Burst: 100_000},
		{Rate: 10_000_000, Burst: 1<<31 - 1}:          {Rate: 1_250_000, Burst: 125_000}, // a kubelet's
		{Rate: 8, Burst: 1<<31 - 1}:                   {Rate: 1, Burst: 1514},
		{Rate: 8, Burst: 1514 * 8}:                    {Rate: 1, Burst: 1514},
		{Rate: math.MaxInt64, Burst: (1<<32 - 1) * 8}: {Rate: math.MaxInt64 / 8, Burst: 1<<32 - 1},
	} {
		if got := mode.Shape(asked, 1500); got != want {
			t.Errorf("%+v is made %s, not %s", asked, got, want)
		}
	}
}
