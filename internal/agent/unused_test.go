package agent

import (
	"strconv"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/nettest"
)

// A pod makes each ADD of an interface fail, and the runtime repeats the ADD. The addresses
// that the ADDs had claimed were never in use, so they do not rest, and other pods get them.
func TestPodThatCannotBeAttachedTakesNoAddresses(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   []string
		fits bool // the interface can be made all the same
	}{
		{"the gateway's address is the pod's", []string{"ip link set lo up", "ip addr add 169.254.1.1/32 dev lo"}, false},
		{"its lo has another name", []string{"ip link set lo name lx"}, true},
		{"its routes have all metrics", later(), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, "default=10.88.0.0/29") // room for six
			r.cooldown = time.Hour
			r.begin()
			bad := nettest.Pod(t)
			for _, c := range tt.do {
				nettest.Run(t, bad, c)
			}
			for range 8 {
				if _, err := r.tryAdd(request("bad", bad)); tt.fits != (err == nil) {
					t.Fatalf("ADD of the bad pod: %v", err)
				}
			}
			nettest.Eventually(t, "the failed ADDs are undone", func() bool { return tt.fits || len(r.index.All()) == 0 })
			if rests := r.core.Ledger.Resting(); len(rests) > 0 {
				t.Errorf("resting: %v", rests)
			}
			well := nettest.Pod(t)
			got := addresses(r.add(request("well", well)))
			nettest.Ping(t, well, got[0])
		})
	}
}

// later returns commands that give a pod routes to the gateway with all metrics that a new
// interface's route could get.
func later() []string {
	all := []string{"ip link add have type veth peer name other", "ip link set other up", "ip link set have up",
		"ip route add 169.254.1.1/32 dev have"}
	for i := range 60 {
		all = append(all, "ip route add 169.254.1.1/32 dev have metric "+strconv.Itoa(1<<16+i))
	}
	return all
}
