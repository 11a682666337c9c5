package agent

import (
	"strings"
	"sync"
	"testing"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/nettest"
)

// A pool without a free address does not make the node NotReady: STATUS succeeds, unless the
// configuration wants it otherwise. ADD's error, the pool's figures and one event say that the
// pool is exhausted, and another event says so when it is exhausted anew.
func TestFullPool(t *testing.T) {
	r := start(t, "default=10.88.0.0/24", "full=10.87.0.1/32")
	var mu sync.Mutex
	var said []api.Event
	r.core.Event = func(e api.Event) {
		mu.Lock()
		defer mu.Unlock()
		if e.Type == api.EventExhausted {
			said = append(said, e)
		}
	}
	wantSaid := func(when string, n int) {
		t.Helper()
		mu.Lock()
		defer mu.Unlock()
		if len(said) != n {
			t.Fatalf("%s: %d events, want %d: %+v", when, len(said), n, said)
		}
		for _, e := range said {
			if e.Owner == "" || !strings.HasPrefix(e.Message, "pool full has no free IPv4 address: 1 in all, 1 in use") {
				t.Errorf("%s: event %+v", when, e)
			}
		}
	}
	pod, other := nettest.Pod(t), nettest.Pod(t)
	r.add(request("a", pod, `"pool":"full"`))
	wantSaid("the last address is given out", 0)
	for range 2 {
		_, err := r.tryAdd(request("b", other, `"pool":"full"`))
		wantError(t, err, 100, "pool full has no free IPv4 address")
	}
	wantSaid("an ADD is repeated in vain", 1)

	st, err := r.Status(t.Context(), "full")
	if err != nil {
		t.Errorf("STATUS: %v", err)
	}
	for _, p := range st.Pools {
		if (p.Exhausted != "") != (p.Name == "full") {
			t.Errorf("pool %s: %q", p.Name, p.Exhausted)
		}
	}
	conf := *r.ground.Config()
	conf.FullNotReady = true
	must(t, r.ground.Reload(t.Context(), &conf))
	_, err = r.Status(t.Context(), "full")
	wantError(t, err, 50, "pool full has no free IPv4 address")
	_, err = r.Status(t.Context(), "")
	must(t, err)

	r.del("a", true)
	r.add(request("b", other, `"pool":"full"`))
	wantSaid("an address is free", 1)
	_, err = r.tryAdd(request("a", pod, `"pool":"full"`))
	wantError(t, err, 100, "pool full has no free IPv4 address")
	wantSaid("the pool is exhausted anew", 2)
}
