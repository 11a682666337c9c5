package nodetest

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/kinds/table"
)

// tables is the table kind. Run hears when others delete the table. Until Run has written
// it again, cuts do not rely on it (intact).
type tables struct{ *doors }

func (t tables) Kind() hold.Kind {
	return hold.Kind{
		Stage:   hold.Use,
		New:     func() hold.Spec { return &table.Spec{} },
		Acquire: t.acquire,
		Verify:  hold.VerifyEach(t.verify),
		Release: hold.Each(t.release),
		Find:    t.find,
	}
}

// wanted returns the table that an owner should have.
func (t tables) wanted(o hold.ID) nft.Ruleset {
	r := t.ruleset
	r.Owner = string(o)
	return r
}

// right reports whether the table is an owner's and as it should be.
func (t tables) right(o hold.ID) bool {
	return t.table != nil && reflect.DeepEqual(*t.table, t.wanted(o))
}

func (t tables) write(o hold.ID) error {
	want := t.wanted(o)
	return t.step("table", "write", func() error {
		t.learn()
		t.table, t.Node.ports = &want, maps.Clone(t.mapped)
		return nil
	})
}

func (t tables) SetRuleset(r nft.Ruleset) error {
	t.mu.Lock()
	t.ruleset = r
	held := t.held
	t.mu.Unlock()
	if held == "" {
		return nil
	}
	return t.write(held)
}

// Retry and Lacks answer for a kernel that supports all of the table.
func (t tables) Retry() error     { return nil }
func (t tables) Lacks() nft.Parts { return 0 }

// Strays finds none: connections of a node in memory have no way that leads past the pods.
func (t tables) Strays([]netip.Addr) ([]netip.Addr, bool, error) { return nil, true, nil }
func (t tables) Noted() ([]netip.Addr, error)                    { return nil, nil }
func (t tables) ClearStrays([]netip.Addr) error                  { return nil }
func (t tables) MarkStrays() error                               { return nil }

func (t tables) acquire(_ context.Context, h hold.Hold) error {
	t.mu.Lock()
	held, right := t.held, t.right(h.Owner)
	t.mu.Unlock()
	if held != "" && held != h.Owner {
		return fmt.Errorf("%s: %w: %s", h.Spec, hold.ErrForeign, held)
	}
	if !right {
		if err := t.write(h.Owner); err != nil {
			return err
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.held = h.Owner
	return nil
}

func (t tables) verify(_ context.Context, h hold.Hold) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.held != "" && t.held != h.Owner, t.table == nil:
		return fmt.Errorf("%s: %w", h.Spec, hold.ErrGone)
	case t.table.Owner != string(h.Owner):
		return fmt.Errorf("%s: %w: it is of %s", h.Spec, hold.ErrGone, t.table.Owner)
	case !t.right(h.Owner):
		return fmt.Errorf("%s: %w", h.Spec, hold.ErrChanged)
	}
	t.held = h.Owner
	return nil
}

func (t tables) release(_ context.Context, h hold.Hold) error {
	return t.step("table", "delete", func() error {
		if t.held == h.Owner {
			t.held = ""
		}
		if t.table != nil && t.table.Owner == string(h.Owner) {
			t.table, t.Node.ports, t.mapped = nil, nil, nil
		}
		return nil
	})
}

func (t tables) find(context.Context, *hold.Look) ([]hold.Hold, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.table == nil {
		return nil, nil
	}
	return []hold.Hold{{Owner: hold.ID(t.table.Owner), Spec: &table.Spec{Instance: t.table.Instance}}}, nil
}

// learn notes which host ports a former agent has left in the table. The caller holds t.mu.
func (t tables) learn() {
	if t.mapped != nil {
		return
	}
	t.doors.mapped = map[hold.ID][]nft.Mapping{}
	for owner, ports := range t.Node.ports {
		if t.kept != nil {
			ports = t.kept(owner, ports)
		}
		if len(ports) > 0 {
			t.doors.mapped[owner] = ports
		}
	}
}

func (t tables) Map(owner hold.ID, ports []nft.Mapping) error {
	return t.step("ports", "map "+string(owner), func() error {
		if t.table == nil && t.held == "" {
			return fmt.Errorf("mapping ports: %w", kernel.ErrNotFound)
		}
		t.learn()
		for other, theirs := range t.Node.ports {
			for _, p := range ports {
				if other != owner && slices.ContainsFunc(theirs, p.SamePort) {
					return fmt.Errorf("%s: %w: %s", p, hold.ErrForeign, other)
				}
			}
		}
		if t.table == nil { // others have deleted it, and Run has not heard of that yet
			want := t.wanted(t.held)
			t.table, t.Node.ports, t.missed = &want, maps.Clone(t.mapped), true
		}
		if t.Node.ports == nil {
			t.Node.ports = map[hold.ID][]nft.Mapping{}
		}
		t.mapped[owner], t.Node.ports[owner] = ports, ports
		return nil
	})
}

func (t tables) Close(owners []hold.ID) error {
	return t.step("ports", fmt.Sprintf("close %s", owners), func() error {
		t.learn()
		for _, owner := range owners {
			ports := slices.Clone(t.mapped[owner])
			for i := range ports {
				if ports[i].Via != 0 {
					ports[i].Via = nft.NoLink
				}
			}
			if len(ports) > 0 {
				t.mapped[owner], t.Node.ports[owner] = ports, ports
			}
		}
		return nil
	})
}

func (t tables) Unmap(owners []hold.ID) error {
	return t.step("ports", fmt.Sprintf("unmap %s", owners), func() error {
		t.learn()
		for _, owner := range owners {
			delete(t.mapped, owner)
			delete(t.Node.ports, owner)
		}
		return nil
	})
}

func (t tables) Mapped() (map[hold.ID][]nft.Mapping, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.Node.ports), nil
}

// Others returns nothing: a node in memory has one agent.
func (t tables) Others() (map[string][]nft.Port, error) { return nil, nil }

func (t tables) UnmapOther(string, []nft.Port, bool) error { return nil }

// Run puts the table back whenever somebody changes it, until ctx ends.
func (t tables) Run(ctx context.Context, report table.Report) {
	for {
		t.mu.Lock()
		held, right, missed := t.held, t.held == "" || t.right(t.held), t.missed
		t.missed = false
		t.mu.Unlock()
		var wait <-chan time.Time
		if !right || missed {
			err := t.write(held)
			if report(hold.ErrGone, err); err != nil {
				wait = time.After(time.Second)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-t.news:
		case <-wait:
		}
	}
}
