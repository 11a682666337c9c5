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
	"github.com/containernetworking/cni/pkg/types"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kinds/delegate"
)

// newest is a hold of a list that has GC and STATUS.
func (w *world) newest() (hold.Hold, *delegate.Spec) {
	h, s := w.hold()
	s.Version = "1.1.0"
	return h, s
}

// has returns a function that returns what a ledger has.
func has(specs ...*delegate.Spec) func() []*delegate.Spec {
	return func() []*delegate.Spec { return specs }
}

// leftover makes a file of an attachment that nobody knows.
func (w *world) leftover(name string) {
	must(w.t, os.WriteFile(filepath.Join(w.dir, "state", name), nil, 0o600))
}

// executes has a function called before each execution of a verb.
type executes struct {
	invoke.Exec
	verb string
	do   func(ctx context.Context) error
}

func (e *executes) ExecPlugin(ctx context.Context, path string, in []byte, env []string) ([]byte, error) {
	if slices.Contains(env, "CNI_COMMAND="+e.verb) {
		if err := e.do(ctx); err != nil {
			return nil, err
		}
	}
	return e.Exec.ExecPlugin(ctx, path, in, env)
}

// GC takes what belongs to no attachment in the ledger, and gets the network's configuration without what is about one attachment.
func TestGC(t *testing.T) {
	w := newWorld(t)
	one, s := w.newest()
	two, other := w.newest()
	s.Plugins[0] = `{"type":"maker","key":{"a":1},"runtimeConfig":{"mac":"02:00:00:00:00:01"},"args":{"cni":{"x":1}}}`
	must(t, w.Kind().Acquire(t.Context(), one), w.Kind().Acquire(t.Context(), two))
	w.leftover("maker-gone-net1")
	w.leftover("other-" + s.Container + "-net2")
	before := len(w.state())
	w.log()
	words, err := w.GC(t.Context(), has(s, other))
	must(t, err)
	if got := w.state(); len(words) > 0 || len(got) != before-2 || slices.Contains(got, "maker-gone-net1") {
		t.Errorf("GC says %q and leaves %q", words, got)
	}
	valid := fmt.Sprintf(`[{"containerID":%q,"ifname":"net1"},{"containerID":%q,"ifname":"net1"}]`, s.Container, other.Container)
	list := `"cni.dev/attachments":` + valid + `,"cni.dev/valid-attachments":` + valid + `,"cniVersion":"1.1.0",`
	want := []string{ // once, though there are two attachments
		`maker GC netns=false {` + list + `"key":{"a":1},"name":"net-a","type":"maker"}`, `other GC netns=false {` + list + `"name":"net-a","type":"other"}`,
	}
	if got := w.log(); !slices.Equal(got, want) {
		t.Errorf("the plugins were asked\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// An IPAM plugin gets GC with the whole configuration of Berth's network, and the attachments of all that has the network's name. The
// network's own plugin, which the configuration names, gets none, nor when the last attachment is gone.
func TestGCOfIPAM(t *testing.T) {
	w := newWorld(t)
	lent := w.lender(t, hold.NewID())
	lent.Version = "1.1.0"
	lent.Plugins[0] = `{"type":"berth-cni","ipam":{"type":"other"},"runtimeConfig":{"ips":["10.1.2.3"]}}`
	h := hold.Hold{Owner: lent.ID, Spec: lent}
	_, beside := w.newest()
	beside.Version = "1.0.0" // its own plugins have no GC
	must(t, w.IPAMKind().Acquire(t.Context(), h))
	w.leftover("berth-cni-gone-net1") // the plugin calls itself by the configuration's type
	w.log()
	_, err := w.GC(t.Context(), has(&lent.Spec, beside))
	must(t, err)
	if got, want := w.state(), []string{"berth-cni-" + lent.Container + "-net1"}; !slices.Equal(got, want) {
		t.Errorf("GC leaves %q, want %q", got, want)
	}
	valid := fmt.Sprintf(`[{"containerID":%q,"ifname":"net1"},{"containerID":%q,"ifname":"net1"}]`, lent.Container, beside.Container)
	want := `berth-cni GC netns=false {"cni.dev/attachments":` + valid + `,"cni.dev/valid-attachments":` + valid +
		`,"cniVersion":"1.1.0","ipam":{"type":"other"},"name":"net-a","type":"berth-cni"}`
	if got := w.log(); !slices.Equal(got, []string{want}) {
		t.Errorf("the plugin was asked\n%s\nwant\n%s", strings.Join(got, "\n"), want)
	}
	must(t, w.IPAMKind().Release(t.Context(), []hold.Hold{h})[0])
	w.log()
	_, err = w.GC(t.Context(), has())
	must(t, err)
	wantVerbs(t, w, "berth-cni GC netns=false")
}

// Which lists have their GC executed.
func TestGCOf(t *testing.T) {
	all := []string{"maker GC netns=false", "other GC netns=false"}
	for name, test := range map[string]struct {
		change func(*delegate.Spec)
		want   []string
	}{
		"newest":        {func(*delegate.Spec) {}, all},
		"old version":   {func(s *delegate.Spec) { s.Version = "1.0.0" }, nil},
		"disabled":      {func(s *delegate.Spec) { s.DisableGC = true }, nil},
		"former CNI's":  {func(s *delegate.Spec) { s.Run = "" }, nil},
		"unreadable":    {func(s *delegate.Spec) { s.Plugins = []string{"[]"} }, nil},
		"other network": {func(s *delegate.Spec) { s.Network = "net-b" }, all},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			_, s := w.newest()
			test.change(s)
			_, err := w.GC(t.Context(), has(s))
			must(t, err)
			wantVerbs(t, w, test.want...)
		})
	}
}

// One list of a network that says disableGC speaks for all: its attachments may be others', too.
func TestGCDisabledByOne(t *testing.T) {
	w := newWorld(t)
	_, one := w.newest()
	_, two := w.newest()
	two.DisableGC, two.Version = true, "1.0.0"
	_, err := w.GC(t.Context(), has(one, two))
	must(t, err)
	wantVerbs(t, w)
}

// A network whose last attachment is gone, or that none has got, has leftovers, too: the last list is remembered in this run.
func TestGCOfLast(t *testing.T) {
	w := newWorld(t)
	h, _ := w.newest()
	defer w.fails("maker", "ADD")()
	if err := w.Kind().Acquire(t.Context(), h); err == nil {
		t.Fatal("ADD succeeds")
	}
	must(t, w.Kind().Release(t.Context(), []hold.Hold{h})[0])
	w.leftover("maker-gone-net1")
	_, err := w.GC(t.Context(), has())
	must(t, err)
	if left := w.state(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	w.verbs()
	w.run("second")
	_, err = w.GC(t.Context(), has())
	must(t, err)
	wantVerbs(t, w)
}

// An ADD that begins during a GC waits for the end of the GC, and has what it has got then.
func TestAddDuringGC(t *testing.T) {
	w := newWorld(t)
	one, s := w.newest()
	late, _ := w.newest()
	elsewhere, there := w.newest()
	there.Network, there.Plugins = "net-b", []string{`{"type":"other"}`}
	must(t, w.Kind().Acquire(t.Context(), one))
	w.verbs()
	ended := make(chan error, 1)
	asked := false
	w.Exec = &executes{w.Exec, "GC", func(context.Context) error {
		if asked {
			return nil
		}
		asked = true
		given, cancel := context.WithCancel(t.Context())
		cancel()
		if err := w.Kind().Acquire(given, late); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "waiting for the GC of network net-a") {
			t.Errorf("an ADD beside a GC: %v", err)
		}
		must(t, w.Kind().Acquire(t.Context(), elsewhere), w.Kind().Release(t.Context(), []hold.Hold{elsewhere})[0])
		go func() { ended <- w.Kind().Acquire(t.Context(), late) }()
		return nil
	}}
	_, err := w.GC(t.Context(), has(s))
	must(t, err, <-ended)
	wantVerbs(t, w, "other ADD netns=true", "other DEL netns=true", "maker GC netns=false", "other GC netns=false", "maker ADD netns=true", "other ADD netns=true")
	if got := w.state(); len(got) != 4 {
		t.Errorf("the plugins have %q", got)
	}
}

// An ADD that is under way when a GC begins is in the ledger, and the GC looks there when no further ADD can begin.
func TestGCDuringAdd(t *testing.T) {
	w := newWorld(t)
	h, s := w.newest()
	late, other := w.newest()
	collected := false
	w.Exec = &executes{w.Exec, "ADD", func(context.Context) error {
		if collected { // the second plugin's ADD: the first one has its file
			return nil
		}
		collected = true
		looks := 0
		_, err := w.GC(t.Context(), func() []*delegate.Spec {
			if looks++; looks == 1 {
				return []*delegate.Spec{s}
			}
			given, cancel := context.WithCancel(t.Context())
			cancel()
			if err := w.Kind().Acquire(given, late); !errors.Is(err, context.Canceled) {
				t.Errorf("an ADD begins after the look: %v", err)
			}
			return []*delegate.Spec{s, other}
		})
		return err
	}}
	w.leftover("maker-" + other.Container + "-net1") // that came after the first look
	w.leftover("maker-gone-net1")
	must(t, w.Kind().Acquire(t.Context(), h))
	want := []string{"maker-" + other.Container + "-net1", "maker-" + s.Container + "-net1", "other-" + s.Container + "-net1"}
	slices.Sort(want)
	if got := w.state(); !slices.Equal(got, want) {
		t.Errorf("the plugins have %q, want %q", got, want)
	}
}

// A plugin's GC that fails keeps no other from its GC, and the error names it. One that does not know the verb is no error.
func TestGCFails(t *testing.T) {
	w := newWorld(t)
	_, one := w.newest()
	_, two := w.newest()
	two.Network = "net-b"
	defer w.fails("maker", "GC")()
	words, err := w.GC(t.Context(), has(one, two))
	if err == nil || !strings.Contains(err.Error(), "network net-a: plugin maker: GC of maker fails") || !strings.Contains(err.Error(), "network net-b: plugin maker") || len(words) > 0 {
		t.Errorf("GC says %q, %v", words, err)
	}
	wantVerbs(t, w, "maker GC netns=false", "other GC netns=false", "maker GC netns=false", "other GC netns=false")
	for _, code := range []uint{types.ErrIncompatibleCNIVersion, types.ErrInvalidEnvironmentVariables} {
		w.run("another")
		w.Exec = &executes{w.Exec, "GC", func(context.Context) error { return &types.Error{Code: code, Msg: "what?"} }}
		words, err = w.GC(t.Context(), has(one))
		if err != nil || len(words) != 2 || !strings.Contains(words[0], "network net-a: plugin maker knows no GC: what?") {
			t.Errorf("code %d: GC says %q, %v", code, words, err)
		}
	}
	must(t, os.Remove(filepath.Join(w.bin(), "other")))
	w.run("third")
	if _, err := w.GC(t.Context(), has(one)); err == nil || !strings.Contains(err.Error(), "network net-a: plugin other: ") {
		t.Errorf("a plugin that is missing: %v", err)
	}
}

// Plugins have a few seconds for GC. They are told so by a context that ends later, so that a runner can say that it has killed them.
func TestGCHangs(t *testing.T) {
	w := newWorld(t)
	_, s := w.newest()
	w.Exec = &executes{w.Exec, "GC", func(ctx context.Context) error {
		if end, limited := ctx.Deadline(); !limited || time.Until(end) > delegate.GCTime {
			t.Errorf("GC has until %v", end)
		}
		words, err := w.GC(t.Context(), has(s))
		if err != nil || len(words) != 1 || !strings.Contains(words[0], "another GC of it is under way") {
			t.Errorf("a second GC of the network says %q, %v", words, err)
		}
		return errors.New("killed")
	}}
	if _, err := w.GC(t.Context(), has(s)); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("GC: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := w.GC(ctx, has(s)); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "network net-a") {
		t.Errorf("a GC out of time: %v", err)
	}
}
