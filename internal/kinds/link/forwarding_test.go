package link_test

import (
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/kinds/link"
	"github.com/berth-net/berth/internal/nettest"
)

// If the node has to forward packets of pods, Verify says that a pod's link which does not forward has
// changed, and Acquire mends the link, each family by itself. On other nodes the kind ignores
// forwarding.
func TestForwarding(t *testing.T) {
	for _, forwards := range []bool{true, false} {
		f := newFixture(t, func(o *link.Options) { o.Forwards = func() bool { return forwards } })
		f.forwarding()
		for _, families := range []string{"4", "6", both} {
			_, h := f.pod(families)
			must(t, f.verify(h))
			for _, family := range families {
				name := "ipv" + string(family) + "/conf/" + spec(h).Name + "/forwarding"
				nettest.Sysctl(t, nil, name, "0")
				err := f.verify(h)
				if said := err != nil && strings.Contains(err.Error(), "forwarding 0, not 1"); said != forwards {
					t.Errorf("forwards %t, %s is off: %v", forwards, name, err)
				}
				must(t, f.kind.Acquire(t.Context(), h))
				must(t, f.verify(h))
				nettest.Sysctl(t, nil, name, "1")
			}
		}
	}
}
