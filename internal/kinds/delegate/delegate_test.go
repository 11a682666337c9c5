package delegate_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/delegate"
	"github.com/berth-net/berth/internal/kinds/kindtest"
	"github.com/berth-net/berth/internal/nettest"
)

func TestKind(t *testing.T) {
	w := newWorld(t)
	kindtest.Run(t, kindtest.Kind{
		Kind: w.Kind(),
		Spec: func(t testing.TB, owner hold.ID) hold.Spec { return w.spec(t, owner) },
		Example: &delegate.Spec{
			ID: "abcdefghij", Network: "net-a", Version: "1.0.0", Type: "of IPAM alone", Plugins: []string{`{"type":"macvlan"}`}, Container: "c1",
			Netns: ns.Ref{Path: "/run/netns/p", Dev: 4, Ino: 4026532000, ID: 7}, Ifname: "net1", Args: "K8S_POD_NAME=web", Folders: []string{"/opt/cni/bin"},
			DisableCheck: true, DisableGC: true, Run: "run", Files: []string{"/var/lib/cni/results/net-a-c1-net1"}, Result: `{"cniVersion":"1.0.0"}`, Done: true,
		},
		Snapshot:    func() string { return strings.Join(w.state(), "\n") },
		Undisguised: "what plugins have made is theirs to know: the kind sees the interface alone",
		End:         func(t testing.TB, h hold.Hold) { delLink(t, h.Spec.(*delegate.Spec)) },
		Foreign: func(t testing.TB, h hold.Hold) func() error {
			at, err := h.Spec.(*delegate.Spec).Netns.Open()
			must(t, err)
			t.Cleanup(func() { at.Close() })
			c, err := rtnl.Open(at)
			must(t, err)
			t.Cleanup(func() { c.Close() })
			must(t, c.Do(rtnl.AddBridge(rtnl.Bridge{Name: "net1"})))
			return func() error {
				if there, err := at.HasLink("net1"); err != nil || !there {
					return fmt.Errorf("it is there: %t, %v", there, err)
				}
				return nil
			}
		},
	})
}

func wantVerbs(t *testing.T, w *world, want ...string) {
	t.Helper()
	if got := w.verbs(); !slices.Equal(got, want) {
		t.Errorf("the plugins were asked %q, want %q", got, want)
	}
}

// multus #1449, #755: DEL got a configuration that had lost what the release needs.
// Here the plugins get their configurations of ADD for DEL and CHECK, with the list's name and version and the result; DEL in reverse.
func TestConfiguration(t *testing.T) {
	w := newWorld(t)
	k := w.Kind()
	h, s := w.hold()
	must(t, k.Acquire(t.Context(), h), w.Check(t.Context(), s), k.Release(t.Context(), []hold.Hold{h})[0])
	const maker, other = `"cniVersion":"1.0.0","key":{"a":1},"name":"net-a"`, `"cniVersion":"1.0.0","name":"net-a"`
	prev := `,"prevResult":` + s.Result
	want := []string{
		"maker ADD netns=true {" + maker + `,"type":"maker"}`, "other ADD netns=true {" + other + prev + `,"type":"other"}`,
		"maker CHECK netns=true {" + maker + prev + `,"type":"maker"}`, "other CHECK netns=true {" + other + prev + `,"type":"other"}`,
		"other DEL netns=true {" + other + prev + `,"type":"other"}`, "maker DEL netns=true {" + maker + prev + `,"type":"maker"}`,
	}
	if got := w.log(); !slices.Equal(got, want) {
		t.Errorf("the plugins were asked\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if r, err := s.Parsed(); err != nil || len(r.IPs) != 1 || r.Interfaces[0].Name != "net1" {
		t.Errorf("result %v, %v", r, err)
	}
}

// A list of an old version gets no prevResult for DEL, and no CHECK.
func TestOldVersion(t *testing.T) {
	w := newWorld(t)
	h, s := w.hold()
	s.Version = "0.3.1"
	must(t, w.Kind().Acquire(t.Context(), h), w.Check(t.Context(), s), w.Kind().Release(t.Context(), []hold.Hold{h})[0])
	log := w.log()
	if len(log) != 4 || !strings.Contains(log[1], "prevResult") || strings.Contains(log[2]+log[3], "prevResult") {
		t.Errorf("the plugins were asked\n%s", strings.Join(log, "\n"))
	}
}

// DEL of all plugins is tried, also if one fails. The error names it.
func TestDelTriesAll(t *testing.T) {
	w := newWorld(t)
	h, _ := w.hold()
	must(t, w.Kind().Acquire(t.Context(), h))
	w.verbs()
	heal := w.fails("other", "DEL")
	err := w.Kind().Release(t.Context(), []hold.Hold{h})[0]
	if err == nil || !strings.Contains(err.Error(), "plugin other: DEL of other fails") {
		t.Errorf("release: %v", err)
	}
	wantVerbs(t, w, "other DEL netns=true", "maker DEL netns=true")
	heal()
	must(t, w.Kind().Release(t.Context(), []hold.Hold{h})[0])
	if left := w.state(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// An ADD that fails half-way, or that was under way when the agent was killed, is undone before another one.
func TestAddAgain(t *testing.T) {
	record := func(s *delegate.Spec) *delegate.Spec { c := *s; return &c }
	for name, begin := range map[string]func(*testing.T, *world, hold.Hold) hold.Hold{
		"after a failure": func(t *testing.T, w *world, h hold.Hold) hold.Hold {
			defer w.fails("other", "ADD")()
			if err := w.Kind().Acquire(t.Context(), h); err == nil {
				t.Error("ADD succeeds")
			}
			if s := h.Spec.(*delegate.Spec); s.Done || s.Result == "" {
				t.Errorf("after half an ADD: done %t, result %s", s.Done, s.Result)
			}
			return h
		},
		"after a kill": func(t *testing.T, w *world, h hold.Hold) hold.Hold {
			before := record(h.Spec.(*delegate.Spec))
			must(t, w.Kind().Acquire(t.Context(), h))
			w.run("second")
			return hold.Hold{Owner: h.Owner, Spec: before}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			h, _ := w.hold()
			h = begin(t, w, h)
			w.verbs()
			if err := w.Kind().Verify(t.Context(), nil, []hold.Hold{h})[0]; !errors.Is(err, hold.ErrHalfMade) {
				t.Errorf("verify: %v, want half-made", err)
			}
			must(t, w.Kind().Acquire(t.Context(), h))
			wantVerbs(t, w, "other DEL netns=true", "maker DEL netns=true", "maker ADD netns=true", "other ADD netns=true")
			must(t, w.Kind().Verify(t.Context(), nil, []hold.Hold{h})[0], w.Kind().Release(t.Context(), []hold.Hold{h})[0])
			if left := w.state(); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
		})
	}
}

// What is released is as if it had never been: an ADD after it needs no DEL.
func TestAddAfterRelease(t *testing.T) {
	w := newWorld(t)
	h, s := w.hold()
	asked := *s
	must(t, w.Kind().Acquire(t.Context(), h), w.Kind().Release(t.Context(), []hold.Hold{h})[0])
	w.verbs()
	must(t, w.Kind().Acquire(t.Context(), hold.Hold{Owner: h.Owner, Spec: &asked}))
	wantVerbs(t, w, "maker ADD netns=true", "other ADD netns=true")
}

// A configuration cannot bring a prevResult of its own: without a result so far, a plugin gets none.
func TestForeignResult(t *testing.T) {
	w := newWorld(t)
	h, s := w.hold()
	s.Plugins = []string{`{"type":"maker","prevResult":{"cniVersion":"1.0.0"}}`}
	must(t, w.Kind().Acquire(t.Context(), h))
	if log := w.log(); len(log) != 1 || strings.Contains(log[0], "prevResult") {
		t.Errorf("the plugin got %q", log)
	}
}

// The pod's network namespace is gone, or its path leads to another pod: the plugins give back what they have, and get no namespace.
func TestPodIsGone(t *testing.T) {
	for name, leave := range map[string]func(*testing.T, *delegate.Spec){
		"gone":        func(t *testing.T, s *delegate.Spec) { s.Netns.Path = filepath.Join(t.TempDir(), "gone") },
		"another pod": func(t *testing.T, s *delegate.Spec) { s.Netns.Path = nettest.Pod(t).Ref().Path },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			h, s := w.hold()
			must(t, w.Kind().Acquire(t.Context(), h))
			w.verbs()
			leave(t, s)
			w.run("second")
			if err := w.Kind().Verify(t.Context(), nil, []hold.Hold{h})[0]; !errors.Is(err, hold.ErrGone) {
				t.Errorf("verify: %v", err)
			}
			if err := w.Kind().Acquire(t.Context(), h); !errors.Is(err, hold.ErrHomeless) {
				t.Errorf("acquire: %v", err)
			}
			must(t, w.Kind().Release(t.Context(), []hold.Hold{h})[0])
			wantVerbs(t, w, "other DEL netns=false", "maker DEL netns=false")
			if left := w.state(); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
		})
	}
}

// A network of which a plugin is missing executes none, and its release owes nothing, unless it is a later run of the agent that releases it.
func TestMissingPlugin(t *testing.T) {
	w := newWorld(t)
	h, _ := w.hold()
	must(t, os.Rename(filepath.Join(w.bin(), "other"), filepath.Join(w.bin(), "away")))
	if err := w.Kind().Acquire(t.Context(), h); err == nil || !strings.Contains(err.Error(), "plugin other: ") {
		t.Errorf("acquire: %v", err)
	}
	must(t, w.Kind().Release(t.Context(), []hold.Hold{h})[0])
	wantVerbs(t, w)
	w.run("second")
	if err := w.Kind().Release(t.Context(), []hold.Hold{h})[0]; err == nil {
		t.Error("a later run knows that no plugin was executed")
	}
	wantVerbs(t, w, "maker DEL netns=true")
}

// refuses is a libcni that does not start a plugin, and says so.
type refuses struct {
	invoke.Exec
	plugin string
}

type refusal struct{ error }

func (refusal) Unstarted() {}

func (r *refuses) ExecPlugin(ctx context.Context, path string, in []byte, env []string) ([]byte, error) {
	if filepath.Base(path) == r.plugin {
		return nil, refusal{errors.New("is not there")}
	}
	return r.Exec.ExecPlugin(ctx, path, in, env)
}

// A network whose first plugin was not executed owes nothing; one whose first plugin was executed owes the DEL of all.
func TestUnstarted(t *testing.T) {
	w := newWorld(t)
	for _, test := range []struct {
		plugins []string
		fails   string
		want    []string
	}{
		{[]string{`{"type":"maker"}`}, "maker", nil},
		{[]string{`{"type":"maker"}`, `{"type":"other"}`}, "other", []string{"maker ADD netns=true", "maker DEL netns=true"}},
	} {
		h, s := w.hold()
		s.Plugins = test.plugins
		d := delegate.New(delegate.Options{Exec: &refuses{w.Exec, test.fails}, Open: w.Open, Run: w.Run})
		if err := d.Kind().Acquire(t.Context(), h); err == nil || !strings.Contains(err.Error(), "plugin "+test.fails+": is not there") {
			t.Errorf("%q: acquire: %v", test.plugins, err)
		}
		if err := d.Kind().Release(t.Context(), []hold.Hold{h})[0]; (err != nil) != (len(test.want) > 0) {
			t.Errorf("%q: release: %v", test.plugins, err)
		}
		wantVerbs(t, w, test.want...)
		w.verbs()
	}
}

// A plugin that prints no result fails ADD, and a configuration that is none fails everything.
func TestBadInput(t *testing.T) {
	w := newWorld(t)
	must(t, os.WriteFile(filepath.Join(w.bin(), "garbage"), []byte("#!/bin/sh\necho hello\n"), 0o700))
	must(t, os.WriteFile(filepath.Join(w.bin(), "long"), []byte("#!/bin/sh\nprintf '{\"dns\":{\"domain\":\"'; head -c 70000 /dev/zero | tr '\\0' x; echo '\"}}'\n"), 0o700))
	for config, want := range map[string]string{
		`{"type":"garbage"}`: "plugin garbage: failed to unmarshal",
		`{"type":"long"}`:    "plugin long: its result has 7",
		`{}`:                 "plugin 1 of network net-a has no type",
		`[]`:                 "plugin 1 of network net-a: decoding its configuration",
	} {
		h, s := w.hold()
		s.Plugins = []string{config}
		if err := w.Kind().Acquire(t.Context(), h); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", config, err, want)
		}
		if s.Done || s.Result != "" {
			t.Errorf("%s: done %t, result %.20s", config, s.Done, s.Result)
		}
	}
}

// hangs is a libcni whose DELs end with their contexts.
type hangs struct {
	invoke.Exec
	left []time.Duration // that each had
}

func (h *hangs) ExecPlugin(ctx context.Context, path string, in []byte, env []string) ([]byte, error) {
	if !slices.Contains(env, "CNI_COMMAND=DEL") {
		return h.Exec.ExecPlugin(ctx, path, in, env)
	}
	end, limited := ctx.Deadline()
	if !limited {
		end = time.Now()
	}
	h.left = append(h.left, time.Until(end))
	return nil, errors.New("hangs")
}

// The first try of a DEL has little time, because the pod's other networks wait for it; later ones have what the engine gives.
func TestFirstTry(t *testing.T) {
	w := newWorld(t)
	h := &hangs{Exec: w.Exec}
	w.Delegates = delegate.New(delegate.Options{Exec: h, Open: w.Open, Run: w.Run})
	k := w.Kind()
	one, _ := w.hold()
	must(t, k.Acquire(t.Context(), one))
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	for range 2 {
		if err := k.Release(ctx, []hold.Hold{one})[0]; err == nil {
			t.Error("a DEL that hangs succeeds")
		}
	}
	if len(h.left) != 4 || max(h.left[0], h.left[1]) > delegate.FirstTry || min(h.left[2], h.left[3]) < time.Minute {
		t.Errorf("the DELs of two plugins had %v", h.left)
	}
	w.run("second")
	must(t, w.Kind().Release(t.Context(), []hold.Hold{one})[0])
}

// A former CNI's network is another run's, and made: it is looked at, and no plugin's ADD is executed. Its files go with it, and not before
// its DEL has succeeded.
func TestFormer(t *testing.T) {
	w := newWorld(t)
	h, s := w.hold()
	must(t, w.Kind().Acquire(t.Context(), h))
	w.verbs()
	w.run("second")
	s.Run = ""
	for i := range 2 {
		s.Files = append(s.Files, filepath.Join(t.TempDir(), fmt.Sprint("cached", i)))
	}
	must(t, os.WriteFile(s.Files[1], nil, 0o600)) // the other one is gone
	must(t, w.Kind().Verify(t.Context(), nil, []hold.Hold{h})[0], w.Kind().Acquire(t.Context(), h))
	wantVerbs(t, w)
	heal := w.fails("maker", "DEL")
	if err := w.Kind().Release(t.Context(), []hold.Hold{h})[0]; err == nil {
		t.Error("DEL succeeds")
	}
	if _, err := os.Stat(s.Files[1]); err != nil {
		t.Errorf("after a failed DEL: %v", err)
	}
	heal()
	must(t, w.Kind().Release(t.Context(), []hold.Hold{h})[0])
	if _, err := os.Stat(s.Files[1]); !os.IsNotExist(err) {
		t.Errorf("after DEL: %v", err)
	}
	must(t, os.MkdirAll(filepath.Join(s.Files[0], "no file"), 0o700))
	if err := w.Kind().Release(t.Context(), []hold.Hold{h})[0]; err == nil || !strings.Contains(err.Error(), s.Files[0]) {
		t.Errorf("a file that stays: %v", err)
	}
}

// Nobody knows the network namespace of a former CNI's network: it counts as there, until its DEL, which gets none.
func TestPlaceless(t *testing.T) {
	w := newWorld(t)
	h, s := w.hold()
	s.Run, s.Done, s.Netns = "", true, ns.Ref{}
	must(t, w.Kind().Verify(t.Context(), nil, []hold.Hold{h})[0], w.Kind().Acquire(t.Context(), h))
	wantVerbs(t, w)
	must(t, w.Kind().Release(t.Context(), []hold.Hold{h})[0])
	wantVerbs(t, w, "other DEL netns=false", "maker DEL netns=false")
}
