package delegate_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kinds/delegate"
	"github.com/berth-net/berth/internal/kinds/kindtest"
	"github.com/berth-net/berth/internal/nettest"
)

// lender returns what the IPAM plugin other gets for a pod of its own.
func (w *world) lender(t testing.TB, owner hold.ID) *delegate.IPAM {
	return &delegate.IPAM{Spec: delegate.Spec{
		ID: owner, Network: "net-a", Version: "1.0.0", Type: "other", Container: "pod" + string(owner), Netns: nettest.Pod(t).Ref(), Ifname: "net1",
		Plugins: []string{`{"cniVersion":"1.0.0","name":"net-a","type":"berth-cni","ipam":{"type":"other"},"runtimeConfig":{"ips":["10.1.2.3"]}}`},
		Args:    "A=b", Folders: []string{w.bin()}, Run: w.Run,
	}}
}

func TestIPAMKind(t *testing.T) {
	w := newWorld(t)
	k := w.IPAMKind()
	// The checks want to see that a thing has been given back, which nobody but an IPAM plugin sees: TestLent is about Verify.
	k.Verify = hold.VerifyEach(func(context.Context, hold.Hold) error { return nil })
	kindtest.Run(t, kindtest.Kind{
		Kind:   k,
		Spec:   func(t testing.TB, owner hold.ID) hold.Spec { return w.lender(t, owner) },
		Unseen: true,
		Example: &delegate.IPAM{Spec: delegate.Spec{
			ID: "abcdefghij", Network: "net-a", Version: "1.0.0", Type: "host-local", Plugins: []string{`{"type":"berth-cni"}`}, Container: "c1",
			Netns: ns.Ref{Path: "/run/netns/p", Dev: 4, Ino: 4026532000, ID: 7}, Ifname: "net1", Args: "K8S_POD_NAME=web", Folders: []string{"/opt/cni/bin"},
			DisableCheck: true, DisableGC: true, Run: "run", Files: []string{"/file"}, Result: `{"cniVersion":"1.0.0"}`, Done: true,
		}},
		Snapshot: func() string { return strings.Join(w.state(), "\n") },
	})
}

// An IPAM plugin gets the network's whole configuration as it is, the result at DEL and CHECK, and nothing for whoever has a link in the pod. Its
// addresses are names of the owner's from the moment on at which they are known.
func TestLent(t *testing.T) {
	w := newWorld(t)
	k := w.IPAMKind()
	s := w.lender(t, hold.NewID())
	h, asked := hold.Hold{Owner: s.ID, Spec: s}, *s
	nettest.Run(t, at(t, s.Netns), "ip link add net1 type bridge")
	wantState := func(when string, h hold.Hold, want error) {
		t.Helper()
		if err := k.Verify(t.Context(), nil, []hold.Hold{h})[0]; !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", when, err, want)
		}
	}
	wantState("before it is taken", h, hold.ErrGone)
	if names := s.Names(); len(names) > 0 {
		t.Errorf("before it is taken it has the names %v", names)
	}
	must(t, k.Acquire(t.Context(), h))
	wantState("taken", h, nil)
	wantState("as it was asked for", hold.Hold{Owner: s.ID, Spec: &asked}, hold.ErrHalfMade)
	r, err := s.Parsed()
	must(t, err)
	want := ipam.Name(netip.MustParsePrefix(r.IPs[0].Address.String()).Addr())
	if o := (hold.Owner{Holds: []hold.Hold{h}}); !slices.Equal(s.Names(), []hold.Name{want}) || !slices.Equal(o.Lent(), s.Names()) {
		t.Errorf("it has the names %v, and the owner is lent %v", s.Names(), o.Lent())
	}
	again := hold.Hold{Owner: s.ID, Spec: &asked}
	must(t, k.Acquire(t.Context(), again), w.Check(t.Context(), &s.Spec), k.Release(t.Context(), []hold.Hold{h})[0])
	config := func(prev string) string {
		return `{"cniVersion":"1.0.0","ipam":{"type":"other"},"name":"net-a",` + prev + `"runtimeConfig":{"ips":["10.1.2.3"]},"type":"berth-cni"}`
	}
	prev := `"prevResult":` + s.Result + `,`
	var got []string
	for _, line := range w.log() {
		_, line, _ = strings.Cut(line, " ") // the plugin calls itself by the configuration's type
		got = append(got, line)
	}
	if want := []string{"ADD netns=true " + config(""), "CHECK netns=true " + config(prev), "DEL netns=true " + config(prev)}; !slices.Equal(got, want) {
		t.Errorf("the plugin was asked\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if left := w.state(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// at opens a pod.
func at(t testing.TB, r ns.Ref) *ns.Netns {
	n, err := r.Open()
	must(t, err)
	t.Cleanup(func() { n.Close() })
	return n
}

// What an IPAM plugin has given stays given when the pod's path is gone; it takes it back without a network namespace, also after a reboot.
func TestLentToNobody(t *testing.T) {
	w := newWorld(t)
	s := w.lender(t, hold.NewID())
	h := hold.Hold{Owner: s.ID, Spec: s}
	must(t, w.IPAMKind().Acquire(t.Context(), h))
	w.run("second")
	s.Netns.Path = filepath.Join(t.TempDir(), "gone")
	k := w.IPAMKind()
	must(t, k.Verify(t.Context(), nil, []hold.Hold{h})[0], k.Acquire(t.Context(), h), k.Release(t.Context(), []hold.Hold{h})[0])
	if log := fmt.Sprint(w.log()); !strings.Contains(log, "DEL netns=false") || strings.Count(log, "ADD") != 1 || len(w.state()) > 0 {
		t.Errorf("the plugin was asked %s, and keeps %v", log, w.state())
	}
}
