package share_test

import (
	"fmt"
	"testing"

	"github.com/berth-net/berth/api/v1alpha1"
	"github.com/berth-net/berth/internal/share"
)

// A node is short of a pool's addresses if the usable ones of its blocks are fewer than it asks for, in any family that the pool has.
func TestShort(t *testing.T) {
	pools := map[string]*v1alpha1.IPPool{
		"one":  {Spec: v1alpha1.IPPoolSpec{IPv4: &v1alpha1.Range{}}},
		"both": {Spec: v1alpha1.IPPoolSpec{IPv4: &v1alpha1.Range{}, IPv6: &v1alpha1.Range{}}},
	}
	block := func(pool, cidr string) v1alpha1.Block { return v1alpha1.Block{Pool: pool, CIDR: cidr} }
	withdrawn := v1alpha1.Block{Pool: "one", CIDR: "10.0.1.0/26", Withdrawn: true}
	for name, c := range map[string]struct {
		asks  int32
		of    string
		has   []v1alpha1.Block
		short string
	}{
		"nothing yet":            {asks: 1, of: "one", short: "[one]"},
		"nothing is asked for":   {asks: 0, of: "one", short: "[]"},
		"the last usable one":    {asks: 62, of: "one", has: []v1alpha1.Block{block("one", "10.0.0.0/26")}, short: "[]"},
		"one more than usable":   {asks: 63, of: "one", has: []v1alpha1.Block{block("one", "10.0.0.0/26")}, short: "[one]"},
		"a withdrawn block":      {asks: 63, of: "one", has: []v1alpha1.Block{block("one", "10.0.0.0/26"), withdrawn}, short: "[one]"},
		"another pool's":         {asks: 1, of: "one", has: []v1alpha1.Block{block("both", "10.0.0.0/26")}, short: "[one]"},
		"one family lacks":       {asks: 5, of: "both", has: []v1alpha1.Block{block("both", "10.0.0.0/26")}, short: "[both]"},
		"both families suffice":  {asks: 5, of: "both", has: []v1alpha1.Block{block("both", "10.0.0.0/26"), block("both", "fd00::/122")}, short: "[]"},
		"a huge block of IPv6":   {asks: 5, of: "both", has: []v1alpha1.Block{block("both", "10.0.0.0/26"), block("both", "fd00::/64")}, short: "[]"},
		"a pool that is not any": {asks: 5, of: "none", short: "[]"},
	} {
		n := &v1alpha1.NodeNetwork{}
		n.Spec.Blocks = c.has
		n.Status.Requests = []v1alpha1.Request{{Pool: c.of, Addresses: c.asks}}
		if short := fmt.Sprint(share.Short(n, pools)); short != c.short {
			t.Errorf("%s: short of %s, want %s", name, short, c.short)
		}
	}
}
