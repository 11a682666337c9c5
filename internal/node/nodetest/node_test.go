package nodetest

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/fault"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/link"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/node"
	"github.com/berth-net/berth/internal/stamp"
)

// What others do to a node shows in its state, and an agent that listens hears of it.
func TestOthers(t *testing.T) {
	addr := netip.MustParseAddr("10.1.0.1")
	id := hold.NewID()
	name := stamp.Link("aaaa", id)
	for _, tt := range []struct {
		name  string
		do    func(*Node, *Pod)
		lacks string // how what the pod lacks begins
		news  rtnl.Change
	}{
		{"ip link set down", func(w *Node, _ *Pod) { w.SetDown(name) }, "it is cut off", rtnl.LinkDown},
		{"ip link set mtu", func(w *Node, _ *Pod) { w.SetLink(name, func(l *Link) { l.MTU = 1 }) }, "", rtnl.LinkSet},
		{"ip link del", func(w *Node, _ *Pod) { w.DeleteLink(name) }, "it is gone", rtnl.LinkGone},
		{"ip route del", func(w *Node, _ *Pod) { w.DeleteRoute(addr, name) }, "there is no way to 10.1.0.1", rtnl.RouteGone},
		{"the pod ends", func(w *Node, p *Pod) { w.End(p) }, "it is gone", rtnl.LinkGone},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := New()
			n, err := w.Open(fault.New(1<<30, fault.FailBefore), nil)()
			if err == nil {
				err = n.Mark("aaaa", node.Hooks{})
			}
			nettest.Must(t, err)
			p := w.Pod("/run/netns/a")
			s := &link.Spec{Name: name, Netns: p.Ref(), Ifname: "eth0", Addresses: []netip.Addr{addr}}
			nettest.Must(t, n.Links.Kind().Acquire(t.Context(), hold.Hold{Owner: id, Spec: s}))
			if why := w.Lacks(name, p, "eth0", s.Addresses); why != "" {
				t.Fatalf("a link that was acquired: %s", why)
			}
			m, err := n.Monitor()
			nettest.Must(t, err)
			before := w.State().String()
			tt.do(w, p)
			if why := w.Lacks(name, p, "eth0", s.Addresses); !strings.HasPrefix(why, tt.lacks) || why != "" && tt.lacks == "" {
				t.Errorf("it lacks %q, want %q", why, tt.lacks)
			}
			if after := w.State().String(); after == before {
				t.Errorf("the state is as it was: %s", after)
			}
			if len(m.(*monitor).heard) == 0 {
				t.Fatal("who listens is told nothing")
			}
			if heard, err := m.Next(); err != nil || heard[0].Change != tt.news {
				t.Errorf("who listens is told %v, %v; want %v", heard, err, tt.news)
			}
			w.Reboot()
			if !p.Ended() || !w.State().Empty() {
				t.Errorf("after a reboot the pod has ended: %t; and there is %s", p.Ended(), w.State())
			}
		})
	}
}

// An interface in a pod that is not the other end of the owner's link is not the owner's.
func TestVerifyPodOfDecoy(t *testing.T) {
	w := New()
	n, err := w.Open(fault.New(1<<30, fault.FailBefore), nil)()
	if err == nil {
		err = n.Mark("aaaa", node.Hooks{})
	}
	nettest.Must(t, err)
	p, id := w.Pod("/run/netns/a"), hold.NewID()
	h := hold.Hold{Owner: id, Spec: &link.Spec{Name: stamp.Link("aaaa", id), Netns: p.Ref(), Ifname: "eth0"}}
	nettest.Must(t, n.Links.Kind().Acquire(t.Context(), h))
	nettest.Must(t, n.Links.VerifyPodCeded(t.Context(), h, rtnl.Families{}))
	decoy := *p.ends["eth0"]
	p.ends["eth0"] = &decoy
	if err := n.Links.VerifyPodCeded(t.Context(), h, rtnl.Families{}); !errors.Is(err, hold.ErrChanged) {
		t.Errorf("VerifyPod says %v", err)
	}
}
