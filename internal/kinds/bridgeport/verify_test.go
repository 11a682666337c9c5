package bridgeport_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/bridgeport"
	"github.com/berth-net/berth/internal/nettest"
)

// CHECK names each difference, on the node and in the pod. Verify sees those of the port, and Acquire mends these and nothing else.
func TestVerifyPod(t *testing.T) {
	f := newFixture(t)
	set := func(change func(*rtnl.Port)) func(hold.Hold) {
		return func(h hold.Hold) {
			p := f.show(h)
			change(&p.Port)
			must(t, f.conn.Do(rtnl.SetPort(p.Index, p.Port)))
		}
	}
	for i, c := range []struct {
		node, pod string
		do        func(hold.Hold)
		want      string
	}{
		{node: "ip link set PORT down", want: "down"},
		{node: "ip link set PORT nomaster", want: "no port of bridge br0"},
		{node: "ip link set PORT group 7", want: "group 7, not"},
		{node: "ip link set PORT alias mine", want: `alias "mine"`},
		{node: "ip link set PORT address 02:00:00:00:00:98", want: "mac 02:00:00:00:00:98"},
		{do: set(func(p *rtnl.Port) { p.Locked = false }), want: "Locked:false"},
		{do: set(func(p *rtnl.Port) { p.Learning = true }), want: "Learning:true"},
		{do: set(func(p *rtnl.Port) { p.Isolated = true }), want: "Isolated:true"},
		{do: func(h hold.Hold) {
			var up rtnl.Link
			must(t, f.conn.Do(rtnl.GetLink("uplink", &up)))
			must(t, f.conn.Do(rtnl.SetPortMAC(up.Index, []byte{2, 0, 0, 0, 1, 9}, true)))
		}, want: "does not know 02:00:00:00:01:09 behind the port"},
		{pod: "ip link set net1 down name other", want: "the pod's end is called other"},
		{pod: "ip link set net1 address 02:00:00:00:00:99", want: "mac 02:00:00:00:00:99"},
		{pod: "ip link set net1 mtu 1300", want: "mtu 1300, not 1400"},
		{pod: "ip addr flush dev net1 to 192.0.2.0/24", want: "no address 192.0.2."},
		{pod: "ip route del 203.0.113.0/24", want: "no route 203.0.113.0/24"},
	} {
		pod, h := f.taken(1 + i)
		must(t, f.verify(h), f.all.VerifyPod(t.Context(), h))
		switch {
		case c.node != "":
			nettest.Run(t, f.node, strings.ReplaceAll(c.node, "PORT", specOf(h).Name))
		case c.pod != "":
			nettest.Run(t, pod, c.pod)
		default:
			c.do(h)
		}
		var changed *hold.ChangedError
		if err := f.all.VerifyPod(t.Context(), h); !errors.As(err, &changed) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: CHECK says %v", c.want, err)
		}
		if err := f.verify(h); errors.Is(err, hold.ErrChanged) != (c.pod == "") {
			t.Errorf("%s: Verify says %v", c.want, err)
		}
		before := nettest.Snapshot(t, pod)
		err := f.kind.Acquire(t.Context(), h)
		if foreign := strings.Contains(c.want, "does not know"); foreign != errors.Is(err, hold.ErrForeign) || !foreign && err != nil {
			t.Errorf("%s: Acquire says %v", c.want, err)
		}
		if c.pod != "" {
			nettest.Same(t, before, nettest.Snapshot(t, pod), c.want+", and Acquire: the pod")
		} else if err == nil {
			must(t, f.verify(h), f.all.VerifyPod(t.Context(), h))
			nettest.Ping(t, pod, lan4)
		}
		f.release(h)
	}
}

// The agent is killed after each step of create: Verify says half-made, another Acquire makes the pair anew, and Release leaves nothing.
func TestHalfMade(t *testing.T) {
	f := newFixture(t)
	var b rtnl.Bridge
	must(t, f.conn.Do(rtnl.GetBridge("br0", &b)))
	empty := f.snapshot()
	steps := []func(s *bridgeport.Spec) rtnl.Request{
		func(s *bridgeport.Spec) rtnl.Request { return rtnl.SetLink(s.Name, rtnl.Alias(s.Alias)) },
		func(s *bridgeport.Spec) rtnl.Request { return rtnl.AddAltName(s.Name, "berth-"+s.Name) },
		func(s *bridgeport.Spec) rtnl.Request { return rtnl.SetLink(s.Name, rtnl.NoAddrGen()) },
	}
	for n := range len(steps) + 1 {
		pod := nettest.Pod(t)
		h := f.hold(pod, 1)
		s := specOf(h)
		half := func() {
			host := []byte{0xfe, 0, 0, 0, 0, 1}
			s.HostMAC = "fe:00:00:00:00:01"
			must(t, f.conn.Do(rtnl.AddVeth(rtnl.End{Name: s.Name, MAC: host, Master: b.Index}, f.groups.Coming(), rtnl.End{Name: "net1", MAC: []byte{2, 0, 0, 0, 1, 1}}, pod.Fd())))
			for _, step := range steps[:n] {
				must(t, f.conn.Do(step(s)))
			}
		}
		half()
		was := f.show(h).Index
		if err := f.verify(h); !errors.Is(err, hold.ErrHalfMade) {
			t.Errorf("%d steps: Verify says %v", n, err)
		}
		f.take(h)
		if now := f.show(h); now.Index == was || now.Group != f.groups.Live() {
			t.Errorf("%d steps: the port was %d, and is %+v", n, was, now)
		}
		must(t, f.verify(h), f.all.VerifyPod(t.Context(), h))
		nettest.Ping(t, pod, lan4)
		f.release(h)
		half()
		f.release(h)
		if left := f.snapshot(); left != empty {
			t.Errorf("%d steps: the node had\n%s\nand has\n%s", n, empty, left)
		}
	}
}

// Somebody asks for the owner's release while its pair is made, or the caller has left: the pair goes again, and nobody could have used it. What is
// cut off stays so if the caller of Acquire has left.
func TestGoing(t *testing.T) {
	blind := errors.New("cannot tell")
	for what, c := range map[string]struct {
		going func(leave func()) (bool, error)
		want  error
	}{
		"a deletion waits": {func(func()) (bool, error) { return true, nil }, hold.ErrGoing},
		"nobody can tell":  {func(func()) (bool, error) { return false, blind }, blind},
		"the caller left":  {func(leave func()) (bool, error) { leave(); return false, nil }, context.Canceled},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		f := newFixture(t, func(o *bridgeport.Options) {
			o.Going = func(hold.ID) (bool, error) { return c.going(cancel) }
		})
		pod := nettest.Pod(t)
		if err := f.kind.Acquire(ctx, f.hold(pod, 1)); !errors.Is(err, c.want) || !errors.Is(err, hold.ErrUnused) {
			t.Errorf("%s: %v", what, err)
		}
		if there, err := pod.HasLink("net1"); err != nil || there {
			t.Errorf("%s: the pod's end is there: %t, %v", what, there, err)
		}
		cancel()
	}
	f := newFixture(t)
	_, h := f.taken(1)
	must(t, f.kind.Cut(t.Context(), h))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := f.kind.Acquire(ctx, h); err == nil {
		t.Error("it is taken")
	}
	if p := f.show(h); p.Up || p.Group != f.groups.Cut() {
		t.Errorf("it is %+v", p)
	}
}
