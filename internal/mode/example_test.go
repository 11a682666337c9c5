package mode_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/cni/netconf"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/kinds/kindtest"
	"github.com/berth-net/berth/internal/mode"
	"github.com/berth-net/berth/internal/mode/routed"
)

// This file is the example of docs/ARCHITECTURE.md: a kind, and a mode that uses it. The
// kind "note" keeps a file on the node that says which pod an attachment is of; the mode
// "noted" is routed, with a note.

// note is the spec of a note: what the ledger keeps of it.
type note struct {
	Text string `json:"text"`
}

func (*note) Kind() string     { return "note" }
func (n *note) String() string { return "note " + n.Text }

// notes is a folder with a file for each note, named by its owner's incarnation.
type notes string

func (dir notes) path(h hold.Hold) string { return filepath.Join(string(dir), string(h.Owner)) }

func (dir notes) kind() hold.Kind {
	return hold.Kind{
		Stage:   hold.Use,
		New:     func() hold.Spec { return new(note) },
		Acquire: dir.acquire,
		Verify:  hold.VerifyEach(dir.verify),
		Release: hold.Each(dir.release),
		Find:    dir.find,
	}
}

// ours reads the file of a hold. A kill may have cut ours short.
func (dir notes) ours(h hold.Hold) (text string, ours bool, err error) {
	raw, err := os.ReadFile(dir.path(h))
	return string(raw), err == nil && strings.HasPrefix(h.Spec.(*note).Text, string(raw)), err
}

// acquire may be done again after a crash: "so already, and ours" is success. What is
// another's stays.
func (dir notes) acquire(_ context.Context, h hold.Hold) error {
	if _, ours, err := dir.ours(h); err == nil && !ours {
		return fmt.Errorf("%s: %w", dir.path(h), hold.ErrForeign)
	}
	return os.WriteFile(dir.path(h), []byte(h.Spec.(*note).Text), 0o600)
}

// verify says what differs: the file is gone, or changed.
func (dir notes) verify(_ context.Context, h hold.Hold) error {
	have, _, err := dir.ours(h)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s: %w", dir.path(h), hold.ErrGone)
	case err == nil && have != h.Spec.(*note).Text:
		return fmt.Errorf("%s says %q: %w", dir.path(h), have, hold.ErrChanged)
	}
	return err
}

// release takes "not there" for success, and leaves what is another's.
func (dir notes) release(_ context.Context, h hold.Hold) error {
	if _, ours, err := dir.ours(h); errors.Is(err, fs.ErrNotExist) || err == nil && !ours {
		return nil
	}
	return os.Remove(dir.path(h))
}

// find returns all notes: whose owner is gone, the sweep releases.
func (dir notes) find(context.Context, *hold.Look) ([]hold.Hold, error) {
	files, err := os.ReadDir(string(dir))
	var all []hold.Hold
	for _, f := range files {
		text, _ := os.ReadFile(filepath.Join(string(dir), f.Name()))
		all = append(all, hold.Hold{Owner: hold.ID(f.Name()), Spec: &note{string(text)}})
	}
	return all, err
}

// TestNotes holds the kind to what every kind must pass.
func TestNotes(t *testing.T) {
	dir := notes(t.TempDir())
	kindtest.Run(t, kindtest.Kind{
		Kind: dir.kind(),
		Fake: true, // it needs no network namespace
		Spec: func(_ testing.TB, owner hold.ID) hold.Spec { return &note{"net/" + string(owner) + "/eth0"} },
		Snapshot: func() string {
			all, _ := dir.find(t.Context(), nil)
			return fmt.Sprint(all)
		},
		Foreign: func(t testing.TB, h hold.Hold) func() error {
			if err := os.WriteFile(dir.path(h), []byte("somebody else's"), 0o600); err != nil {
				t.Fatal(err)
			}
			return func() error {
				have, err := os.ReadFile(dir.path(h))
				if err == nil && string(have) != "somebody else's" {
					err = fmt.Errorf("it says %q", have)
				}
				return err
			}
		},
	})
}

// noted is the mode: all that it does not say otherwise is as in routed.
type noted struct{ *routed.Routed }

var _ mode.Mode = noted{}

func (noted) Name() string { return "noted" }

// Plan adds a note to what a routed attachment holds.
func (m noted) Plan(ctx context.Context, id hold.ID, r attachment.Record, c *netconf.Conf) (hold.Owner, func(), error) {
	o, undo, err := m.Routed.Plan(ctx, id, r, c)
	if err != nil {
		return o, undo, err
	}
	o.Holds = append(o.Holds, hold.Hold{Owner: id, Spec: &note{r.Key.String()}})
	return o, undo, nil
}

// TestNoted plans an attachment of the mode, and looks for its note.
func TestNoted(t *testing.T) {
	pools, err := ipam.New([]ipam.PoolConfig{{Name: "default", CIDRs: []netip.Prefix{netip.MustParsePrefix("10.88.0.0/24")}}})
	if err != nil {
		t.Fatal(err)
	}
	modes := mode.Modes{noted{routed.New(routed.Options{
		Instance: "aaaaaaaaaa",
		MTU:      func() int { return 1500 },
		Claim: func(_ context.Context, pool string, _ []netip.Addr) (ipam.Claim, error) {
			return pools.Claim(pool, time.Now())
		},
	})}}
	m, err := modes.Of("noted")
	if err != nil {
		t.Fatal(err)
	}
	r := attachment.Record{Key: attachment.Key{Network: "net", ContainerID: "c", Ifname: "eth0"}, Pool: "default", Mode: m.Name()}
	o, _, err := m.Plan(t.Context(), hold.NewID(), r, &netconf.Conf{})
	if err != nil {
		t.Fatal(err)
	}
	h, ok := o.Find("note")
	if !ok || h.Owner != o.ID || h.Spec.String() != "note net/c/eth0" {
		t.Errorf("the owner holds %v", o.Holds)
	}
	if face := modes.Interface(o, r); face.Host == "" || len(face.Addresses) != 1 {
		t.Errorf("its interface is %+v", face)
	}
	if _, err := modes.Of("bridge"); err == nil || !strings.Contains(err.Error(), `no mode "bridge"`) {
		t.Errorf("a mode that there is not: %v", err)
	}
}
