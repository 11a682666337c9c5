package agent

import (
	"context"
	"net/netip"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
)

// After a start, the agent takes missing holds again while it serves verbs: each verb may meet
// an attachment that lacks its link, and is mended later.
func TestVerbsMeetWhatIsNotMendedYet(t *testing.T) {
	r := start(t)
	pods := map[string]*ns.Netns{}
	for _, c := range []string{"gone", "anew", "again", "moved", "gc", "stays"} {
		pods[c] = nettest.Pod(t)
		r.add(request(c, pods[c]))
	}
	r.close()
	for c := range pods {
		link, _ := r.linkOf(c)
		must(t, netlink.LinkDel(nettest.Link(t, link)))
	}
	must(t, r.open())
	mend, err := r.resume(t.Context())
	must(t, err)
	other := nettest.Pod(t)
	var verbs sync.WaitGroup
	do := func(f func() error) {
		verbs.Go(func() {
			if err := f(); err != nil {
				t.Error(err)
			}
		})
	}
	del := func(c string) error { _, _, err := r.Delete(t.Context(), key(c), false, now()); return err }
	add := func(c string, p *ns.Netns) error { _, err := r.tryAdd(request(c, p)); return err }
	verbs.Go(func() { mend(t.Context()) })
	verbs.Go(func() { r.Sweep(t.Context()) })
	do(func() error { return del("gone") })
	do(func() error {
		if err := del("anew"); err != nil {
			return err
		}
		return add("anew", pods["anew"])
	})
	do(func() error { return add("again", pods["again"]) })
	do(func() error { return add("moved", other) })
	w := now()
	do(func() error {
		req := api.GCRequest{Network: "net"}
		for _, c := range []string{"gone", "anew", "again", "moved", "stays"} {
			req.Valid = append(req.Valid, api.GCValid{ContainerID: c, Ifname: "eth0"})
		}
		_, err := r.GC(t.Context(), req, w)
		return err
	})
	verbs.Wait()
	mend(context.WithoutCancel(t.Context())) // once more, of what was missing then
	for _, c := range []string{"gone", "gc"} {
		r.wantGone(c)
	}
	for _, c := range []string{"anew", "again", "moved", "stays"} {
		nettest.Eventually(t, c+" is attached once", func() bool { return len(r.List(key(c))) == 1 })
		r.wantAttached(c)
	}
	pods["moved"] = other
	from := pods["stays"]
	for _, c := range []string{"anew", "again", "moved"} {
		for _, a := range r.List(key(c))[0].Addresses {
			to, err := netip.ParseAddr(a)
			must(t, err)
			nettest.Ping(t, from, to)
		}
	}
	r.wantClean()
}
