package agent

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/api/client"
	"github.com/berth-net/berth/internal/attachment/verbs"
	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/fault"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kinds/hostports"
	"github.com/berth-net/berth/internal/nettest"
)

// live runs the rig's agent as berthd does, until the test ends. Then live opens the agent for the
// rig again.
func (r *rig) live(o Options, reload <-chan config.Reading) {
	r.t.Helper()
	ctx, stop := context.WithCancel(r.t.Context())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, o, reload) }()
	r.t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			r.t.Error(err)
		}
		r.bringUp()
	})
}

// serving waits until the agent of a rig that lives answers.
func (r *rig) serving() *client.Client {
	r.t.Helper()
	c := client.New(r.root.Socket())
	nettest.Eventually(r.t, "the agent serves", func() bool {
		ctx, cancel := context.WithTimeout(r.t.Context(), time.Second)
		defer cancel()
		h, err := c.Health(ctx)
		return err == nil && h.Serving
	})
	return c
}

// A sweep that hangs in one kind keeps the agent from nothing else: the socket, a
// new configuration, other kinds.
func TestHangingSweepKeepsNothingElse(t *testing.T) {
	r := start(t)
	link := r.add(request("c", nettest.Pod(t))).Interfaces[0].Name
	r.close()
	o, err := r.options()
	must(t, err)
	o.Config.SweepInterval = 50 * time.Millisecond
	var hung sync.Once
	hangs, heal := make(chan struct{}), make(chan struct{})
	defer close(heal)
	looks := 0
	o.Decorate = change("flows", func(k *hold.Kind) {
		k.Verify = func(_ context.Context, look *hold.Look, hs []hold.Hold) []error {
			if looks++; looks > 1 { // the first is the start's
				hung.Do(func() { close(hangs) })
				<-heal // whatever the context says
			}
			return make([]error, len(hs))
		}
	})
	reload := make(chan config.Reading, 1)
	r.live(o, reload)
	<-hangs
	must(t, os.Remove(r.root.Socket()))
	nettest.Eventually(t, "the removed socket is made again", func() bool {
		_, err := os.Stat(r.root.Socket())
		return err == nil
	})
	c, err := r.conf()
	must(t, err)
	select {
	case reload <- config.Reading{Config: c}:
	default:
		t.Fatal("nobody reads the configuration")
	}
	nettest.Eventually(t, "the new configuration is read", func() bool { return len(reload) == 0 })
	must(t, netlink.LinkSetDown(nettest.Link(t, link)))
	nettest.Eventually(t, "the link is mended", func() bool {
		l, err := netlink.LinkByName(link)
		return err == nil && l.Attrs().Flags&1 != 0
	})
}

// A pod has a say in how long the agent takes to make the pod's link again. A restart, and the
// mending of other pods, do not wait for this link.
func TestRepairsWaitForNoOtherPod(t *testing.T) {
	r := start(t)
	bad, good, also := nettest.Pod(t), nettest.Pod(t), nettest.Pod(t)
	badLink := r.add(request("bad", bad)).Interfaces[0].Name
	goodLink := r.add(request("good", good)).Interfaces[0].Name
	id := r.id("bad")
	r.close()
	must(t, netlink.LinkDel(nettest.Link(t, badLink)))
	must(t, netlink.LinkSetDown(nettest.Link(t, goodLink)))
	heal := make(chan struct{})
	defer close(heal)
	o, err := r.options()
	must(t, err)
	o.Decorate = change("link", func(k *hold.Kind) {
		acquire := k.Acquire
		k.Acquire = func(ctx context.Context, h hold.Hold) error {
			if h.Owner == id {
				<-heal // whatever the context says
			}
			return acquire(ctx, h)
		}
	})
	r.live(o, nil)
	c := r.serving()
	isUp := func() bool {
		l, err := netlink.LinkByName(goodLink)
		return err == nil && l.Attrs().Flags&1 != 0
	}
	nettest.Eventually(t, "the other pod's link is mended by the restart", isUp)
	must(t, netlink.LinkSetDown(nettest.Link(t, goodLink)))
	nettest.Eventually(t, "the other pod's link is mended by who watches", isUp)
	if _, err := c.Add(t.Context(), request("also", also)); err != nil {
		t.Errorf("ADD: %v", err)
	}
	for _, container := range []string{"good", "also"} {
		if _, err := c.Delete(t.Context(), key(container), true); err != nil {
			t.Errorf("DEL of %s: %v", container, err)
		}
	}
}

// An owed hold is in the way only of an ADD that needs exactly the hold's place: with
// connection tracking broken for all pods, ADDs in the pods' namespaces go on.
func TestOwedFlowsKeepNoPlace(t *testing.T) {
	r, b := startBreakable(t)
	pod := nettest.Pod(t)
	r.add(request("a", pod))
	b.set(true, "release", "flows", "")
	for _, next := range []struct{ del, add string }{{"a", "b"}, {"b", "b"}} { // another container's, and the same again
		r.del(next.del, false)
		ctx, cancel := context.WithTimeout(t.Context(), verbs.FormerPlace/2)
		if _, err := r.tryAddUntil(ctx, request(next.add, pod)); err != nil {
			t.Errorf("ADD of %s, with the link of %s gone and its flows owed: %v", next.add, next.del, err)
		}
		cancel()
	}
	b.heal()
	r.core.Engine.Retry()
}

// A table that hangs while it gives back a pod's host ports keeps nobody waiting: that pod's DEL is
// answered, and others come and go. An ADD that asks for one of the ports hears who has the port,
// and gets the port once the kernel answers.
func TestHangingHostPortsKeepNobody(t *testing.T) {
	heal := make(chan struct{})
	r := newRig(t)
	r.decorate = change(hostports.KindName, func(k *hold.Kind) {
		release := k.Release
		k.Release = func(ctx context.Context, hs []hold.Hold) []error {
			<-heal // whatever the context says
			return release(ctx, hs)
		}
	})
	r.begin()
	host := r.add(request("a", nettest.Pod(t), wishedPorts("a"))).Interfaces[0].Name
	id := r.id("a")
	r.del("a", false)
	nettest.Eventually(t, "the pod's link to be gone", func() bool { _, err := netlink.LinkByName(host); return err != nil })
	r.add(request("b", nettest.Pod(t)))
	r.del("b", true)
	heir := request("heir", nettest.Pod(t), wishedPorts("a"))
	_, err := r.tryAdd(heir)
	wantError(t, err, 11, string(id))
	wantError(t, err, 11, "0.0.0.0:8097")
	close(heal)
	nettest.Eventually(t, "the heir to get the port", func() bool { _, err := r.tryAdd(heir); return err == nil })
	r.del("heir", true)
}

// A runtime that repeats a failed ADD does not get the remains of the failed one, even if the
// agent could not write the undo. The remains may be half of an attachment, and the agent
// releases them as soon as the disk has room.
func TestFailedAddIsNotAnsweredAgain(t *testing.T) {
	r := newRig(t)
	l := &fault.Disk{}
	fails := true
	r.decorate = func(in engine.Ledger, ks hold.Kinds) (engine.Ledger, hold.Kinds) {
		l.Ledger = in
		_, ks = change("link", func(k *hold.Kind) {
			acquire := k.Acquire
			k.Acquire = func(ctx context.Context, h hold.Hold) error {
				err := acquire(ctx, h)
				if fails {
					l.Fill(1)
					err = errors.Join(err, errors.New("acquire is broken"))
				}
				return err
			}
		})(in, ks)
		return l, ks
	}
	r.begin()
	pod := nettest.Pod(t)
	if _, err := r.tryAdd(request("c", pod)); err == nil {
		t.Fatal("attached")
	}
	failed := r.id("c")
	fails = false
	r.Sweep(t.Context())
	if _, err := r.tryAdd(request("c", pod)); err == nil {
		t.Error("ADD again, with the disk still full, answers what the failed one has left")
	}
	l.Clear()
	r.add(request("c", pod))
	for _, at := range r.List(api.Filter{Container: "c"}) { // the failed attachment may still be going
		if at.Releasing == nil && hold.ID(at.ID) == failed {
			t.Errorf("ADD again answers %s, which has failed", failed)
		}
	}
	r.wantClean()
}
