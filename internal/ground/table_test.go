package ground

import (
	"fmt"
	"net/netip"
	"testing"
)

// A pool keeps all of its addresses, also those that a metadata service has elsewhere.
func TestNoPoolIsBlocked(t *testing.T) {
	prefix := netip.MustParsePrefix
	blocked := []netip.Prefix{prefix("169.254.0.0/16"), prefix("100.100.100.200/32"), prefix("fd00:ec2::254/128")}
	for want, pools := range map[string][]netip.Prefix{
		"[169.254.0.0/16 100.100.100.200/32 fd00:ec2::254/128]": {prefix("10.88.0.0/16"), prefix("fd00:88::/64")},
		"[169.254.0.0/16 fd00:ec2::254/128]":                    {prefix("10.88.0.0/16"), prefix("100.64.0.0/10")},
		"[169.254.0.0/16]":                                      {prefix("100.100.100.200/32"), prefix("fd00:ec2::/64")},
	} {
		if got := fmt.Sprint(outside(pools, blocked)); got != want {
			t.Errorf("with the pools %v are blocked %s, not %s", pools, got, want)
		}
	}
	if len(blocked) != 3 {
		t.Errorf("the configuration has %v now", blocked)
	}
}
