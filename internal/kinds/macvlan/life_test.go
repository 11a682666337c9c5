package macvlan_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/macvlan"
	"github.com/berth-net/berth/internal/nettest"
)

// An agent was killed at any step of Acquire. Verify says half-made, another Acquire makes the macvlan anew, and
// Release leaves nothing. The steps are those of create, one more with each case.
func TestKilled(t *testing.T) {
	f := newFixture(t)
	var parent rtnl.Link
	must(t, f.conn.Do(rtnl.GetLink("uplink", &parent)))
	steps := []string{
		"",
		"ip link set net1 alias '%s'",
		"ip addr add 192.0.2.1/24 dev net1 noprefixroute",
		"ip link set net1 up",
		"ip route add 198.51.100.0/24 dev net1 proto 98",
	}
	for n := range steps {
		for _, mode := range []string{"bridge", "passthru"} {
			half := func() (*ns.Netns, hold.Hold) {
				pod := f.pod()
				h := f.hold(pod, 1, func(s *macvlan.Spec) {
					if s.Mode = mode; mode == "passthru" {
						s.MAC = ""
					}
				})
				m := rtnl.NewMacvlan{Name: "net1", MTU: 1400, Parent: parent.Index}
				m.Mode, _ = rtnl.ParseMacvlanMode(mode)
				if mode != "passthru" {
					m.MAC = []byte{2, 0, 0, 0, 1, 1}
				}
				must(t, f.conn.Do(rtnl.AddMacvlan(m, f.groups.Coming(), pod.Fd())))
				for _, step := range steps[1 : n+1] {
					if alias, ok := strings.CutSuffix(step, " '%s'"); ok {
						must(t, nettest.Command(pod, "ip", append(strings.Fields(alias)[1:], specOf(h).Alias)...).Run())
					} else {
						nettest.Run(t, pod, step)
					}
				}
				return pod, h
			}
			pod, h := half()
			if err := f.verify(h); !errors.Is(err, hold.ErrHalfMade) {
				t.Errorf("%s, %d steps: Verify says %v", mode, n, err)
			}
			was := f.show(h).Index
			f.take(h)
			if now := f.show(h); now.Index == was || now.Group != f.groups.Live() {
				t.Errorf("%s, %d steps: the macvlan was %d, and is %+v", mode, n, was, now)
			}
			must(t, f.verify(h), f.all.VerifyPod(t.Context(), h))
			nettest.Ping(t, pod, lan4)
			f.release(h)
			pod, h = half()
			f.release(h)
			if there, err := pod.HasLink("net1"); err != nil || there {
				t.Errorf("%s, %d steps: after the release it is there: %t, %v", mode, n, there, err)
			}
		}
	}
}

// In passthru a macvlan has its parent's MAC, so that a half-made one shows no more than its name and its instance's group: that of another
// network of the pod is not for a release of one that the pod has deleted.
func TestHalfMadeOfAnother(t *testing.T) {
	f := newFixture(t)
	pod, h := f.taken(1, func(s *macvlan.Spec) { s.Mode, s.MAC = "passthru", "" })
	nettest.Run(t, pod, "ip link del net1")
	var parent rtnl.Link
	must(t, f.conn.Do(rtnl.GetLink("uplink", &parent)))
	must(t, f.conn.Do(rtnl.AddMacvlan(rtnl.NewMacvlan{Name: "net2", Parent: parent.Index, Mode: rtnl.MacvlanPassthru}, f.groups.Coming(), pod.Fd())))
	was := nettest.Snapshot(t, pod)
	must(t, f.kind.Cut(t.Context(), h))
	f.release(h)
	nettest.Same(t, was, nettest.Snapshot(t, pod), "the pod")
}

// Somebody asks for the owner's release while its macvlan is made, or the caller has left: the macvlan goes again.
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
		f := newFixture(t, func(o *macvlan.Options) {
			o.Going = func(hold.ID) (bool, error) { return c.going(cancel) }
		})
		pod := f.pod()
		if err := f.kind.Acquire(ctx, f.hold(pod, 1)); !errors.Is(err, c.want) || errors.Is(err, hold.ErrUnused) {
			t.Errorf("%s: %v", what, err)
		}
		if there, err := pod.HasLink("net1"); err != nil || there {
			t.Errorf("%s: the macvlan is there: %t, %v", what, there, err)
		}
		cancel()
	}
}

// What is cut off stays so if the caller of Acquire has left.
func TestNeverUncut(t *testing.T) {
	f := newFixture(t)
	_, h := f.taken(1)
	must(t, f.kind.Cut(t.Context(), h))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := f.kind.Acquire(ctx, h); err == nil {
		t.Error("it is taken")
	}
	if l := f.show(h); l.Up || l.Group != f.groups.Cut() {
		t.Errorf("it is %+v", l)
	}
}

// The pod's namespace has ended: its macvlan is gone, Release succeeds, and the parent's other macvlans stay.
func TestNamespaceEnds(t *testing.T) {
	f := newFixture(t)
	pod, h := f.taken(1)
	other, o := f.taken(2)
	nettest.Delete(t, pod)
	if err := f.verify(h); !errors.Is(err, hold.ErrGone) {
		t.Errorf("Verify says %v", err)
	}
	if err := f.kind.Acquire(t.Context(), h); !errors.Is(err, hold.ErrHomeless) || !errors.Is(err, hold.ErrUnused) {
		t.Errorf("Acquire says %v", err)
	}
	must(t, f.kind.Cut(t.Context(), h))
	f.release(h)
	must(t, f.verify(o))
	nettest.Ping(t, other, lan4)
	if left := nettest.Snapshot(t, f.node).String(); strings.Contains(left, "net1") {
		t.Errorf("the node has\n%s", left)
	}
}

// What happens to the parent, and what Verify and Acquire say then.
func TestParent(t *testing.T) {
	for what, c := range map[string]struct {
		harm            []string
		verify, acquire error
	}{
		"deleted":           {[]string{"ip link del uplink"}, hold.ErrGone, kernel.ErrNotFound},
		"renamed":           {[]string{"ip link set uplink down", "ip link set uplink name wan"}, hold.ErrChanged, kernel.ErrNotFound},
		"moved":             {[]string{"ip link set uplink netns LAN"}, hold.ErrChanged, kernel.ErrNotFound},
		"another's name":    {[]string{"ip link set uplink down", "ip link set uplink name wan", "ip link add uplink type veth peer name other"}, hold.ErrChanged, nil},
		"deleted, and anew": {[]string{"ip link del uplink", "ip link add uplink type veth peer name other"}, hold.ErrGone, nil},
	} {
		f := newFixture(t)
		_, h := f.taken(1)
		must(t, f.verify(h))
		for _, line := range c.harm {
			nettest.Run(t, f.node, strings.ReplaceAll(line, "LAN", f.lan.Ref().Path))
		}
		for name, look := range map[string]func(hold.Hold) error{"a look": f.verify, "a glance": f.glance} {
			if err := look(h); !errors.Is(err, c.verify) {
				t.Errorf("%s: %s says %v", what, name, err)
			}
		}
		was := f.show(h).Index
		err := f.kind.Acquire(t.Context(), h)
		if c.acquire != nil && !errors.Is(err, c.acquire) || (err == nil) != (what == "deleted, and anew") {
			t.Errorf("%s: Acquire says %v", what, err)
		}
		if now := f.show(h).Index; c.verify == hold.ErrChanged && now != was {
			t.Errorf("%s: macvlan %d became %d", what, was, now)
		}
		f.release(h)
		if f.show(h).Index != 0 {
			t.Errorf("%s: after the release it is there", what)
		}
	}
}

// A parent that is a macvlan: the pod's macvlan is its parent's.
func TestParentIsMacvlan(t *testing.T) {
	f := newFixture(t)
	nettest.Run(t, f.node, "ip link add link uplink name upper type macvlan mode bridge")
	pod, h := f.taken(1, func(s *macvlan.Spec) { s.Parent = "upper" })
	must(t, f.verify(h), f.all.VerifyPod(t.Context(), h), f.kind.Acquire(t.Context(), h))
	nettest.Ping(t, pod, lan4)
}

// A glance enters no pod whose macvlan was whole, and what it cannot know a full look tells it.
func TestGlance(t *testing.T) {
	f := newFixture(t)
	pod, h := f.taken(1)
	nettest.Run(t, pod, "ip link del net1")
	must(t, f.glance(h))
	for range 2 {
		if err := f.verify(h); !errors.Is(err, hold.ErrGone) {
			t.Errorf("a look says %v", err)
		}
		if err := f.glance(h); !errors.Is(err, hold.ErrGone) {
			t.Errorf("after a look, a glance says %v", err)
		}
	}
	f.take(h)
	later := macvlan.New(macvlan.Options{Conn: f.conn, At: f.node, Instance: instance}).Kind() // a restart
	must(t, later.Verify(t.Context(), hold.Glance(), []hold.Hold{h})[0])
	nettest.Run(t, pod, "ip link del net1")
	must(t, later.Verify(t.Context(), hold.Glance(), []hold.Hold{h})[0])
	again := macvlan.New(macvlan.Options{Conn: f.conn, At: f.node, Instance: instance}).Kind()
	if err := again.Verify(t.Context(), hold.Glance(), []hold.Hold{h})[0]; !errors.Is(err, hold.ErrGone) {
		t.Errorf("a glance of an agent that has never looked says %v", err)
	}
}

// Paths of pods hang: what needs them fails soon and says why, and other pods do not wait for them.
func TestPathHangs(t *testing.T) {
	f := newFixture(t)
	_, other := f.taken(1)
	folder := t.TempDir()
	nettest.Hang(t, folder)
	var hs []hold.Hold
	for i := range 4 {
		pod := f.pod()
		hs = append(hs, f.hold(pod, 2+i, func(s *macvlan.Spec) { s.Netns.Path = filepath.Join(folder, fmt.Sprint(i)) }))
	}
	for i, err := range f.kind.Verify(t.Context(), nil, append(hs, other)) {
		if hangs := i < len(hs); hangs != errors.Is(err, ns.ErrHangs) || errors.Is(err, hold.ErrGone) {
			t.Errorf("%d: Verify says %v", i, err)
		}
	}
	for _, err := range []error{
		f.kind.Acquire(t.Context(), hs[0]), f.kind.Cut(t.Context(), hs[1]), f.kind.Release(t.Context(), hs[2:3])[0],
	} {
		if !errors.Is(err, ns.ErrHangs) || errors.Is(err, hold.ErrHomeless) {
			t.Errorf("an answer is %v", err)
		}
	}
}

// A program in the pod uses a macvlan that is deleted: Release does not wait for it. After four such deletions Acquire
// makes no further macvlan in this pod.
func TestHeld(t *testing.T) {
	f := newFixture(t)
	pod := f.pod()
	for i := range 4 {
		h := f.hold(pod, 1+i)
		f.take(h)
		defer nettest.HoldLink(t, pod, "net1")()
		f.release(h)
		if there, err := pod.HasLink("net1"); err != nil || there {
			t.Fatalf("it is there: %t, %v", there, err)
		}
	}
	if err := f.kind.Acquire(t.Context(), f.hold(pod, 5)); !errors.Is(err, kernel.ErrBusy) {
		t.Errorf("a fifth macvlan: %v", err)
	}
	f.taken(6)
}
