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
	"github.com/berth-net/berth/internal/nettest"
)

// This file is the example of docs/ARCHITECTURE.md: a kind, and a mode that uses it. The
// kind "note" keeps a file on the node that says which pod an attachment is of; the mode
// "noted" is routed, with a note.

// note is the spec of a note, which the ledger keeps.
type note struct {
	File string `json:"file"` // its name in the folder
	Text string `json:"text"`
}

func (*note) Kind() string     { return "note" }
func (n *note) String() string { return "note " + n.File }

// notes is a folder with a file for each note. Each file begins with the stamp, which says that the
// file is Berth's.
type notes string

const stamp = "berth: "

func (dir notes) path(h hold.Hold) string { return filepath.Join(string(dir), h.Spec.(*note).File) }

// fresh is where acquire writes a note, before the note gets its name.
func (dir notes) fresh(h hold.Hold) string {
	return filepath.Join(string(dir), "."+h.Spec.(*note).File)
}

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

// read returns the text of a note. A file without the stamp is nobody's note; a kill cannot
// have cut it short, because acquire renames it into its place.
func (dir notes) read(path string) (text string, ours bool, err error) {
	raw, err := os.ReadFile(path)
	text, ours = strings.CutPrefix(string(raw), stamp)
	return text, ours, err
}

// acquire may be called again after a crash: "so already, and ours" is success. It leaves a
// file that is another's alone.
func (dir notes) acquire(_ context.Context, h hold.Hold) error {
	if _, ours, err := dir.read(dir.path(h)); err == nil && !ours {
		return fmt.Errorf("%s: %w", dir.path(h), hold.ErrForeign)
	}
	fresh := dir.fresh(h)
	if err := os.WriteFile(fresh, []byte(stamp+h.Spec.(*note).Text), 0o600); err != nil {
		return err
	}
	return os.Rename(fresh, dir.path(h))
}

// verify says what differs: the file is gone, or changed.
func (dir notes) verify(_ context.Context, h hold.Hold) error {
	text, ours, err := dir.read(dir.path(h))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s: %w", dir.path(h), hold.ErrGone)
	case err == nil && (!ours || text != h.Spec.(*note).Text):
		return fmt.Errorf("%s says %q: %w", dir.path(h), text, hold.ErrChanged)
	}
	return err
}

// release takes "not there" for success, and leaves a file that is another's alone. It also removes what
// an acquire that was killed has left.
func (dir notes) release(_ context.Context, h hold.Hold) error {
	if err := os.Remove(dir.fresh(h)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if _, ours, err := dir.read(dir.path(h)); errors.Is(err, fs.ErrNotExist) || err == nil && !ours {
		return nil
	}
	return os.Remove(dir.path(h))
}

// find returns all notes; a sweep releases those that no owner in the ledger has.
func (dir notes) find(context.Context, *hold.Look) ([]hold.Hold, error) {
	files, err := os.ReadDir(string(dir))
	var all []hold.Hold
	for _, f := range files {
		id, bad := hold.ParseID(f.Name())
		if text, ours, _ := dir.read(filepath.Join(string(dir), f.Name())); bad == nil && ours {
			all = append(all, hold.Hold{Owner: id, Spec: &note{f.Name(), text}})
		}
	}
	return all, err
}

// TestNotes runs the checks that every kind must pass.
func TestNotes(t *testing.T) {
	dir := notes(t.TempDir())
	kindtest.Run(t, kindtest.Kind{
		Kind:    dir.kind(),
		Example: &note{File: "abcdefghij", Text: "net/c/eth0"}, // go test -update writes it into testdata
		Spec:    func(_ testing.TB, owner hold.ID) hold.Spec { return &note{string(owner), "net/c/eth0"} },
		Snapshot: func() string { // the whole folder, of which find shows only whole notes
			files, _ := filepath.Glob(string(dir) + "/*")
			half, _ := filepath.Glob(string(dir) + "/.*")
			all, _ := dir.find(t.Context(), nil)
			return fmt.Sprint(all, files, half)
		},
		Disguise: func(t testing.TB, h hold.Hold) {
			nettest.Must(t, os.WriteFile(dir.path(h), []byte(stamp+"another text"), 0o600))
		},
		Foreign: func(t testing.TB, h hold.Hold) func() error {
			nettest.Must(t, os.WriteFile(dir.path(h), []byte("somebody else's"), 0o600))
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

// noted is the mode. It does everything as routed does, except what its own methods do.
type noted struct{ *routed.Routed }

var _ mode.Mode = noted{}

func (noted) Name() string { return "noted" }

// Plan adds a note to what a routed attachment holds.
func (m noted) Plan(ctx context.Context, id hold.ID, r attachment.Record, c *netconf.Conf) (hold.Owner, func(), error) {
	o, undo, err := m.Routed.Plan(ctx, id, r, c)
	if err != nil {
		return o, undo, err
	}
	o.Holds = append(o.Holds, hold.Hold{Owner: id, Spec: &note{string(id), r.Key.String()}})
	return o, undo, nil
}

// TestNoted plans an attachment of the mode, and looks for the attachment's note.
func TestNoted(t *testing.T) {
	pools, err := ipam.New([]ipam.PoolConfig{{Name: "default", CIDRs: []netip.Prefix{netip.MustParsePrefix("10.88.0.0/24")}}})
	nettest.Must(t, err)
	modes := mode.Modes{noted{routed.New(routed.Options{
		Instance: "aaaaaaaaaa",
		MTU:      func() int { return 1500 },
		Claim: func(_ context.Context, pool string, _ []netip.Addr) (ipam.Claim, error) {
			return pools.Claim(pool, time.Now())
		},
	})}}
	m, err := modes.Of("noted")
	nettest.Must(t, err)
	r := attachment.Record{Key: attachment.Key{Network: "net", ContainerID: "c", Ifname: "eth0"}, Pool: "default", Mode: m.Name()}
	o, _, err := m.Plan(t.Context(), hold.NewID(), r, &netconf.Conf{})
	nettest.Must(t, err)
	h, ok := o.Find("note")
	if !ok || h.Owner != o.ID || h.Spec.(*note).Text != "net/c/eth0" {
		t.Errorf("the owner holds %v", o.Holds)
	}
	if face := modes.Interface(o, r); face.Host == "" || len(face.Addresses) != 1 {
		t.Errorf("its interface is %+v", face)
	}
	if _, err := modes.Of("bridge"); err == nil || !strings.Contains(err.Error(), `no mode "bridge"`) {
		t.Errorf("a mode that there is not: %v", err)
	}
}
