package agent

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/nettest"
)

// GC tries every release, whatever fails, and says how much is owed, also from earlier
// releases.
func TestGCTriesAllAndSaysWhatIsOwed(t *testing.T) {
	r, b := startBreakable(t)
	const pods = 12
	ids := map[string]hold.ID{}
	for i := range pods {
		c := fmt.Sprintf("c%d", i)
		r.add(request(c, nettest.Pod(t)))
		ids[c] = r.id(c)
	}
	kinds := []string{"link", "flows"}
	for i := 1; i < pods; i++ { // c0 is kept
		if i%3 != 0 {
			b.set(true, "release", kinds[i%2], ids[fmt.Sprintf("c%d", i)])
		}
	}
	valid := []api.GCValid{{ContainerID: "c0", Ifname: "eth0"}, {ContainerID: "c1", Ifname: "net1"}} // the latter is nobody's
	d, err := r.GC(t.Context(), api.GCRequest{Network: "net", Valid: valid, DryRun: true}, now())
	if err != nil || d.Released != 0 || len(d.IDs) != pods-1 || slices.Contains(d.IDs, string(ids["c0"])) || len(r.core.Engine.Owed("")) != 0 {
		t.Errorf("a dry run: %+v, %v", d, err)
	}
	if d, err := r.GC(t.Context(), api.GCRequest{Network: "net", Valid: valid, MinAge: time.Hour}, now()); err != nil || len(d.IDs) != 0 || d.Released != 0 {
		t.Errorf("none is older than an hour: %+v, %v", d, err)
	}
	d, err = r.GC(t.Context(), api.GCRequest{Network: "net", Valid: valid}, now())
	if err != nil || d.Released != pods-1 || len(d.IDs) != pods-1 || d.Owed != 8 {
		t.Errorf("GC: %+v, %v; want %d released, and owed by 8 of them", d, err, pods-1)
	}
	nettest.Eventually(t, "those of which nothing fails are gone", func() bool { return len(r.List(api.Filter{Network: "net"})) == 9 })
	// Again: nothing new is released, and GC says how much is owed, and tries that again.
	d, err = r.GC(t.Context(), api.GCRequest{Network: "net", Valid: valid}, now())
	if err != nil || d.Released != 0 || len(d.IDs) != 0 || d.Owed != 8 {
		t.Errorf("GC again: %+v, %v", d, err)
	}
	if d, err := r.GC(t.Context(), api.GCRequest{Network: "other", Valid: valid}, now()); err != nil || d.Owed != 0 {
		t.Errorf("of another network: %+v, %v", d, err)
	}
	b.heal()
	if _, err := r.GC(t.Context(), api.GCRequest{Network: "net", Valid: valid}, now()); err != nil {
		t.Error(err)
	}
	nettest.Eventually(t, "what was owed is gone", func() bool { return len(r.List(api.Filter{})) == 1 })
	r.wantClean()
}

// If pods cannot be cut off, the error names each of them, and GC still releases all the
// others.
func TestGCJoinsErrors(t *testing.T) {
	r, b := startBreakable(t)
	var links []string
	for i := range 6 {
		c := fmt.Sprintf("c%d", i)
		r.add(request(c, nettest.Pod(t)))
		if i < 2 {
			b.set(true, "cut", "link", r.id(c))
			b.set(true, "release", "link", r.id(c))
			links = append(links, r.List(api.Filter{Container: c})[0].HostVeth)
		}
	}
	_, err := r.GC(t.Context(), api.GCRequest{Network: "net"}, now())
	for _, link := range links {
		wantError(t, err, 11, "cutting off link "+link)
	}
	nettest.Eventually(t, "the others are gone", func() bool { return len(r.List(api.Filter{})) == 2 })
	for _, at := range r.List(api.Filter{}) {
		if at.State != api.StateOwed || !strings.HasPrefix(at.Owed[0].What, "link ") {
			t.Errorf("%+v", at)
		}
	}
	b.heal()
	if _, err := r.GC(t.Context(), api.GCRequest{Network: "net"}, now()); err != nil {
		t.Error(err)
	}
	nettest.Eventually(t, "all are gone", func() bool { return len(r.List(api.Filter{})) == 0 })
	r.wantClean()
}
