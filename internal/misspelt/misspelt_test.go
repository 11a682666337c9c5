package misspelt_test

import (
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/misspelt"
)

func TestNearest(t *testing.T) {
	known := []string{"pool", "pools", "mtu", "mode", "gcMinAge", "blockedCIDRs", "masquerade"}
	for unknown, want := range map[string]string{
		"pool": "pool", "Pool": "pool", "poool": "pool", "polos": "pools", "pol": "pool", "MTU": "mtu", "mtua": "mtu", "tmu": "mtu",
		"gcminage": "gcMinAge", "gcMinimumAge": "gcMinAge", "blocked_cidrs": "blockedCIDRs", "blockedcidr": "blockedCIDRs",
		"masqurade": "masquerade", "masquerde": "masquerade", "masquarades": "masquerade",
		"": "", "x": "", "mx": "", "cooldown": "", "network": "", "masq": "", strings.Repeat("x", 10000): "",
	} {
		if got := misspelt.Nearest(unknown, known); got != want {
			t.Errorf("%.20q: %q, want %q", unknown, got, want)
		}
	}
	if got := misspelt.Meant("poool", known); got != `: perhaps "pool" is meant` {
		t.Errorf("%q", got)
	}
	if got := misspelt.Meant("network", known); got != "" {
		t.Errorf("%q", got)
	}
}
