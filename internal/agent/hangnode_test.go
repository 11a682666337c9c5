package agent

import (
	"context"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kinds/poolroute"
	"github.com/berth-net/berth/internal/nettest"
)

// hangingCIDR lets whoever takes the route of one CIDR hang, whatever its context
// says, until heal is closed.
func hangingCIDR(cidr string, heal <-chan struct{}) func(engine.Ledger, hold.Kinds) (engine.Ledger, hold.Kinds) {
	return change(poolroute.KindName, func(k *hold.Kind) {
		acquire := k.Acquire
		k.Acquire = func(ctx context.Context, h hold.Hold) error {
			if h.Spec.(*poolroute.Spec).CIDR.String() == cidr {
				<-heal
			}
			return acquire(ctx, h)
		}
	})
}

// The route of a new pool that cannot be taken, as the kernel does not answer, keeps
// no pod of another pool from being deleted: not at a start, nor at a reload, which
// can be told to end.
func TestHangingPoolKeepsNoDeletion(t *testing.T) {
	for name, live := range map[string]func(*rig, Options){
		"at the start": func(r *rig, o Options) { r.live(o, nil) },
		"at a reload": func(r *rig, o Options) {
			c := *o.Config
			r.pools = r.pools[:1]
			var err error
			o.Config, err = r.conf()
			must(r.t, err)
			reload := make(chan *config.Config, 1)
			r.live(o, reload)
			r.serving()
			reload <- &c
			nettest.Eventually(r.t, "the configuration is read", func() bool { return len(reload) == 0 })
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.begin()
			r.add(request("c", nettest.Pod(t)))
			r.close()
			r.pools = append(r.pools, "extra=10.89.0.0/24")
			o, err := r.options()
			must(t, err)
			heal := make(chan struct{})
			o.Decorate = hangingCIDR("10.89.0.0/24", heal)
			t.Cleanup(func() { close(heal) }) // when the agent has ended
			live(r, o)
			c := r.serving()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			if _, err := c.Delete(ctx, key("c"), false); err != nil {
				t.Errorf("DEL: %v", err)
			}
		})
	}
}
