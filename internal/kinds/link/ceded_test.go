package link_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/nettest"
)

// A default route that another network of the pod has is not the link's; one of the other family still is, and so is the way to the
// gateway.
func TestVerifyPodCeded(t *testing.T) {
	f := newFixture(t)
	pod, h := f.pod(both)
	differs := func(ceded rtnl.Families, says string) {
		t.Helper()
		err := f.links.VerifyPodCeded(t.Context(), h, ceded)
		if says == "" {
			must(t, err)
		} else if !errors.Is(err, hold.ErrChanged) || !strings.Contains(err.Error(), says) {
			t.Errorf("with %+v ceded: %v, want %q", ceded, err, says)
		}
	}
	four, six := rtnl.Families{IPv4: true}, rtnl.Families{IPv6: true}
	differs(four, "")
	nettest.Run(t, pod, "ip route del default")
	differs(four, "")
	differs(six, "no route 0.0.0.0/0")
	differs(rtnl.Families{}, "no route 0.0.0.0/0")
	nettest.Run(t, pod, "ip -6 route del default")
	differs(four, "no route ::/0")
	differs(rtnl.Families{IPv4: true, IPv6: true}, "")
	nettest.Run(t, pod, "ip route del 169.254.1.1")
	differs(rtnl.Families{IPv4: true, IPv6: true}, "no route 169.254.1.1/32")
}
