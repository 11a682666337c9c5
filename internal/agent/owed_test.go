package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/deletions"
	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/views"
)

// breaker makes the operations fail that a test has broken, also in the next agent on the same rig.
type breaker struct {
	mu     sync.Mutex
	broken map[string]bool // by "op kind owner"; an empty owner means all owners
}

func newBreaker() *breaker { return &breaker{broken: map[string]bool{}} }

func (b *breaker) set(broken bool, op, kind string, id hold.ID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.broken[op+" "+kind+" "+string(id)] = broken
}

func (b *breaker) heal() {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.broken)
}

func (b *breaker) err(op string, h hold.Hold) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	what := op + " " + h.Spec.Kind()
	if b.broken[what+" "] || b.broken[what+" "+string(h.Owner)] {
		return fmt.Errorf("%s is broken", what)
	}
	return nil
}

// decorate puts the breaker before each operation of the kinds.
func (b *breaker) decorate(l engine.Ledger, ks hold.Kinds) (engine.Ledger, hold.Kinds) {
	out := append(hold.Kinds{}, ks...)
	for i, k := range ks {
		out[i].Acquire = func(ctx context.Context, h hold.Hold) error {
			if err := b.err("acquire", h); err != nil {
				return err
			}
			return k.Acquire(ctx, h)
		}
		out[i].Release = func(ctx context.Context, hs []hold.Hold) []error {
			errs := make([]error, len(hs))
			for j, h := range hs {
				if errs[j] = b.err("release", h); errs[j] == nil {
					errs[j] = k.Release(ctx, []hold.Hold{h})[0]
				}
			}
			return errs
		}
		if k.Cut != nil {
			out[i].Cut = func(ctx context.Context, h hold.Hold) error {
				return errors.Join(b.err("cut", h), k.Cut(ctx, h))
			}
		}
	}
	return l, out
}

// startBreakable starts a rig with a breaker.
func startBreakable(t *testing.T) (*rig, *breaker) {
	t.Helper()
	b := newBreaker()
	r := newRig(t)
	r.decorate = b.decorate
	r.begin()
	return r, b
}

func (r *rig) id(container string) hold.ID {
	r.t.Helper()
	list := r.List(api.Filter{Container: container})
	if len(list) != 1 {
		r.t.Fatalf("%d attachments of %s", len(list), container)
	}
	return hold.ID(list[0].ID)
}

func TestOwedIsShownAndTriedByHand(t *testing.T) {
	r, b := startBreakable(t)
	req := request("c", nettest.Pod(t))
	req.Args = "K8S_POD_NAMESPACE=default;K8S_POD_NAME=web"
	r.add(req)
	if list := r.Owed(); len(list.Holds) != 0 {
		t.Errorf("owed: %+v", list.Holds)
	}
	id := r.id("c")
	b.set(true, "release", "link", id)
	before := time.Now()
	r.del("c", false)
	must(t, r.core.Engine.Tried(t.Context(), id))
	list := r.Owed()
	if len(list.Holds) != 1 {
		t.Fatalf("owed: %+v", list.Holds)
	}
	o := list.Holds[0]
	if o.Owner != string(id) || o.Kind != "link" || !strings.HasPrefix(o.What, "link b") || o.Error != "release link is broken" ||
		o.Tries < 1 || o.Since.Before(before) || o.Next.Before(o.Since) ||
		o.Network != "net" || o.ContainerID != "c" || o.Ifname != "eth0" || o.Pod == nil || o.Pod.Name != "web" {
		t.Errorf("owed: %+v", o)
	}
	if st, err := r.Status(t.Context(), ""); err != nil || st.Owed != 1 || st.Attachments[api.StateOwed] != 1 {
		t.Errorf("status: %+v, %v", st, err)
	}
	a, err := r.Audit(t.Context())
	if err != nil || len(a.Findings) != 1 || a.Findings[0].Type != "owed" || a.Findings[0].Of != "pod default/web" {
		t.Errorf("audit: %+v, %v", a.Findings, err)
	}
	if tried, err := r.RetryOwed(t.Context(), []hold.ID{"zzzzzzzzzz"}); err != nil || tried.Holds != 0 {
		t.Errorf("of an owner that owes nothing %+v are tried, %v", tried, err)
	}
	b.heal()
	if tried, err := r.RetryOwed(t.Context(), []hold.ID{id}); err != nil || tried.Holds > 1 {
		t.Errorf("%+v are tried, %v", tried, err)
	}
	must(t, r.core.Engine.Wait(t.Context(), id))
	r.wantClean()
}

// Everything that shows debts also shows queued deletions and unreadable ones. An audit finds
// the deletions that the agent should have done by now.
func TestWaitingDeletionsAreShown(t *testing.T) {
	r := start(t)
	for container, ago := range map[string]time.Duration{"old": views.Stale + time.Second, "new": 0} {
		rec := deletions.Record{Network: "net", Container: container, Ifname: "eth0", Boot: r.node.Boot, Started: r.node.Boottime() - int64(ago), Link: "babcdaaaaaaaaaa",
			Addresses: []string{"10.88.0.9"}, Netns: "/run/netns/x", Cut: true, Reason: "no agent"}
		must(t, deletions.Write(r.root, rec))
	}
	folder := deletions.Path(r.root)
	list := r.Owed().Deletions
	for _, q := range list.Queued {
		if q.ContainerID == "old" {
			long := time.Now().Add(-views.Stale - time.Second)
			must(t, os.Chtimes(filepath.Join(folder, q.Name), long, long))
		}
	}
	must(t, os.WriteFile(filepath.Join(folder, "junk"), []byte("x"), 0o600))
	list = r.Owed().Deletions
	if len(list.Queued) != 2 || len(list.Damaged) != 1 || list.Damaged[0].Name != "junk" || list.Damaged[0].Error == "" || list.Error != "" {
		t.Fatalf("deletions: %+v", list)
	}
	q := list.Queued[0]
	if q.Network != "net" || q.Ifname != "eth0" || q.Link != "babcdaaaaaaaaaa" || len(q.Addresses) != 1 || q.Netns != "/run/netns/x" ||
		!q.Cut || q.Reason != "no agent" || q.Written.IsZero() {
		t.Errorf("queued: %+v", q)
	}
	if st, err := r.Status(t.Context(), ""); err != nil || st.Deletions.Queued != 2 || st.Deletions.Attachments != 2 || st.Deletions.Damaged != 1 {
		t.Errorf("status: %+v, %v", st.Deletions, err)
	}
	a, err := r.Audit(t.Context())
	if err != nil || len(a.Findings) != 2 {
		t.Fatalf("audit: %+v, %v", a.Findings, err)
	}
	if f := a.Findings[0]; f.Type != "queued" || f.Of != "container old" || !strings.Contains(f.Detail, "net/old/eth0 has been waiting since") {
		t.Errorf("finding: %+v", f)
	}
	if f := a.Findings[1]; f.Type != "damaged" || f.What != "junk" || f.Detail != list.Damaged[0].Error {
		t.Errorf("finding: %+v", f)
	}
	if tried, err := r.RetryOwed(t.Context(), nil); err != nil || tried.Deletions != 2 {
		t.Errorf("tried: %+v, %v", tried, err)
	}
	// If the folder cannot be read, the agent says so, and makes up no numbers.
	makeFile(t, folder)
	if st, _ := r.Status(t.Context(), ""); st.Deletions.Error == "" || r.Owed().Deletions.Error == "" {
		t.Errorf("a folder that cannot be read: %+v", st.Deletions)
	}
	if a, _ := r.Audit(t.Context()); len(a.Findings) != 1 || a.Findings[0].Type != "unreadable" || a.Findings[0].Kind != "deletion" {
		t.Errorf("audit: %+v", a.Findings)
	}
	must(t, os.Remove(folder))
}
