package engine_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/nettest"
)

var must = nettest.Must

// thing is the spec of every kind in these tests: something in a world of maps.
type thing struct {
	K    string `json:"k"`
	N    string `json:"n"`
	Uses string `json:"uses,omitempty"` // a name that is in use while the thing is there
	Seen string `json:"seen,omitempty"` // discovered

	Offers string `json:"offers,omitempty"` // the name that the world gives when the thing is acquired
	Name   string `json:"name,omitempty"`   // the offered name, once it is discovered
	Twice  bool   `json:"twice,omitempty"`  // the offered name is another owner's
}

// Names returns the name that was discovered.
func (t *thing) Names() []hold.Name {
	if t.Name == "" {
		return nil
	}
	return []hold.Name{{Space: "found", Name: t.Name}}
}

func (t *thing) Kind() string   { return t.K }
func (t *thing) String() string { return t.K + " " + t.N }

// world is what the kinds of these tests act on.
type world struct {
	t testing.TB

	mu     sync.Mutex
	things map[string]hold.ID
	users  map[string]hold.ID
	cut    map[string]bool
	log    []string
	batch  map[string]int  // largest Release of a kind
	moved  map[string]int  // how often a thing was lost: each time something else is discovered of it
	taken  map[string]bool // things that were ever there
	ended  map[string]bool // processes that have come to their end by themselves
	// before runs ahead of every operation, without mu. Its error is the operation's.
	before before
}

func newWorld(t testing.TB) *world {
	return &world{
		t: t, things: map[string]hold.ID{}, users: map[string]hold.ID{}, cut: map[string]bool{}, batch: map[string]int{}, moved: map[string]int{}, taken: map[string]bool{}, ended: map[string]bool{},
		before: func(context.Context, string, hold.Hold) error { return nil },
	}
}

type before = func(ctx context.Context, op string, h hold.Hold) error

// on is a world's before that runs f ahead of one operation on the owners' things. Without owners,
// f runs ahead of the operation on every owner's things.
func on(op string, f func(context.Context, hold.Hold) error, owners ...hold.ID) before {
	return func(ctx context.Context, o string, h hold.Hold) error {
		if o == op && (len(owners) == 0 || slices.Contains(owners, h.Owner)) {
			return f(ctx, h)
		}
		return nil
	}
}

func failing(op string, owners ...hold.ID) before {
	return on(op, func(context.Context, hold.Hold) error { return errors.New("device busy") }, owners...)
}

// hanging lets an operation wait for let, whatever its context says.
func hanging(let <-chan struct{}, op string, owners ...hold.ID) before {
	return on(op, func(context.Context, hold.Hold) error { <-let; return nil }, owners...)
}

func (w *world) kinds() hold.Kinds {
	lease := w.kind("lease", hold.Reserve)
	lease.Discovers = true
	wire := w.kind("wire", hold.Use)
	wire.Batch, wire.Flight = 8, 2
	wire.Cut = w.doCut
	block := w.kind("block", hold.Reserve)
	block.Waits = true
	proc := w.kind("proc", hold.Use)
	proc.Ends = true
	port := w.kind("port", hold.Use)
	port.Beside = true
	return hold.Kinds{lease, wire, w.kind("rule", hold.Use), w.kind("note", hold.Tell), block, proc, port}
}

func (w *world) kind(name string, s hold.Stage) hold.Kind {
	return hold.Kind{
		Stage:   s,
		New:     func() hold.Spec { return &thing{K: name} },
		Acquire: w.acquire,
		Verify:  hold.VerifyEach(w.verify),
		Release: func(ctx context.Context, hs []hold.Hold) []error {
			w.mu.Lock()
			w.batch[name] = max(w.batch[name], len(hs))
			w.mu.Unlock()
			return hold.Each(w.release)(ctx, hs)
		},
		Find: func(context.Context, *hold.Look) ([]hold.Hold, error) { return w.find(name), nil },
	}
}

func (w *world) do(ctx context.Context, op string, h hold.Hold, f func(*thing) error) error {
	if err := w.before(ctx, op, h); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.log = append(w.log, op+" "+h.Spec.String())
	return f(h.Spec.(*thing))
}

func (w *world) acquire(ctx context.Context, h hold.Hold) error {
	return w.do(ctx, "acquire", h, func(s *thing) error {
		if owner, ok := w.things[s.String()]; ok {
			if owner != h.Owner {
				return fmt.Errorf("%s: %w", s, hold.ErrForeign)
			}
			w.discover(s)
			return nil
		}
		if w.ended[s.String()] {
			return fmt.Errorf("%s has ended", s)
		}
		if user, ok := w.users[s.Uses]; ok && s.Uses != "" {
			w.t.Errorf("%s is given to %s while %s uses it", s.Uses, h.Owner, user)
		}
		w.things[s.String()], w.taken[s.String()] = h.Owner, true
		if s.Uses != "" {
			w.users[s.Uses] = h.Owner
		}
		w.discover(s)
		return nil
	})
}

// discover fills in what is to be discovered of a lease.
func (w *world) discover(t *thing) {
	if t.K != "lease" {
		return
	}
	t.Seen, t.Name = "leased", t.Offers
	if n := w.moved[t.String()]; n > 0 && t.Offers != "" {
		t.Name = fmt.Sprint(t.Offers, " moved ", n)
	}
}

func (w *world) release(ctx context.Context, h hold.Hold) error {
	return w.do(ctx, "release", h, func(s *thing) error {
		if w.things[s.String()] == h.Owner {
			delete(w.things, s.String())
			delete(w.cut, s.String())
			if w.users[s.Uses] == h.Owner {
				delete(w.users, s.Uses)
			}
		}
		return nil
	})
}

func (w *world) doCut(ctx context.Context, h hold.Hold) error {
	return w.do(ctx, "cut", h, func(s *thing) error {
		if w.things[s.String()] == h.Owner {
			w.cut[s.String()] = true
		}
		return nil
	})
}

func (w *world) verify(_ context.Context, h hold.Hold) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s := h.Spec.String(); w.things[s] != h.Owner {
		if h.Spec.Kind() == "proc" && w.taken[s] {
			return fmt.Errorf("%s: %w", s, hold.ErrEnded)
		}
		return fmt.Errorf("%s: %w", h.Spec, hold.ErrGone)
	}
	if s := h.Spec.(*thing); s.K == "lease" && s.Seen == "" {
		return fmt.Errorf("%s: %w: nobody has written down what it is", h.Spec, hold.ErrChanged)
	}
	return nil
}

func (w *world) find(kind string) []hold.Hold {
	w.mu.Lock()
	defer w.mu.Unlock()
	var found []hold.Hold
	for name, owner := range w.things {
		if k, n, _ := strings.Cut(name, " "); k == kind {
			found = append(found, hold.Hold{Owner: owner, Spec: &thing{K: k, N: n}})
		}
	}
	slices.SortFunc(found, func(a, b hold.Hold) int { return cmp.Compare(a.Spec.String(), b.Spec.String()) })
	return found
}

// set changes the world behind the engine's back.
func (w *world) set(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

// done returns all operations so far.
func (w *world) done() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.log)
}

// residue says what is left in the world.
func (w *world) residue() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return fmt.Sprint(w.things, w.users)
}

const empty = "map[] map[]"

// node is an engine on a world, with a ledger that outlives it.
type node struct {
	*engine.Engine
	t      testing.TB
	world  *world
	path   string
	ledger *ledger.Ledger
	rest   time.Duration
	rests  string // the only space whose names rest; "": all do

	mu     sync.Mutex
	events []engine.Event
}

// bareNode is a node whose engine does not run yet. Its fsyncs cost nothing: these tests are
// about order. The ledger's own tests are about the disk.
func bareNode(t testing.TB) *node {
	return &node{t: t, world: newWorld(t), path: filepath.Join(nettest.Memory(t), "ledger.db")}
}

func newNode(t testing.TB) *node {
	t.Helper()
	return newNodeOf(t, nil)
}

func newNodeOf(t testing.TB, d decorate, change ...func(*engine.Options)) *node {
	t.Helper()
	n := bareNode(t)
	n.start(d, change...)
	t.Cleanup(n.stop)
	return n
}

type decorate func(engine.Ledger, hold.Kinds) (engine.Ledger, hold.Kinds)

func (n *node) start(d decorate, change ...func(*engine.Options)) {
	n.t.Helper()
	kinds := n.world.kinds()
	l, err := ledger.Open(ledger.Options{Path: n.path, Kinds: kinds, Rest: n.restOf})
	must(n.t, err)
	n.ledger = l
	o := engine.Options{
		Ledger: l, Kinds: kinds, Backoff: 10 * time.Microsecond, MaxBackoff: 200 * time.Microsecond,
		Event: func(e engine.Event) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.events = append(n.events, e)
		},
	}
	if d != nil {
		o.Ledger, o.Kinds = d(l, kinds)
	}
	for _, f := range change {
		f(&o)
	}
	n.Engine = engine.New(o)
}

func (n *node) restOf(name hold.Name) time.Duration {
	if n.rests != "" && n.rests != name.Space {
		return 0
	}
	return n.rest
}

func (n *node) stop() {
	n.Close()
	if err := n.ledger.Close(); err != nil {
		n.t.Error(err)
	}
}

func (n *node) restart() {
	n.t.Helper()
	n.stop()
	n.start(nil)
	if err := n.Restore(n.t.Context()); err != nil {
		n.t.Error(err)
	}
}

func (n *node) eventTypes(id hold.ID) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var types []string
	for _, e := range n.events {
		if e.Owner.ID == id {
			types = append(types, string(e.Type))
		}
	}
	return strings.Join(types, " ")
}

// owner makes an owner of things: "lease a", "wire a" ..., each with its name.
func owner(needs hold.ID, name string, kinds ...string) hold.Owner {
	id := hold.NewID()
	o := hold.Owner{ID: id, Meta: json.RawMessage(`{}`), Names: []hold.Name{{Space: "n", Name: name}}}
	if needs != "" {
		o.Needs = []hold.ID{needs}
	}
	for _, k := range kinds {
		s := &thing{K: k, N: string(id)}
		if k == "wire" {
			s.Uses = name
		}
		o.Holds = append(o.Holds, hold.Hold{Owner: id, Spec: s})
	}
	return o
}
