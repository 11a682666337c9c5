package kindtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/nettest"
)

// A toy kind. A hold is a file that has its owner's ID in it, and its place is the file's path.
// A cut makes the file read-only.

type toySpec struct {
	Path  string   `json:"path"`
	Notes []string `json:"notes,omitempty"`
}

func (*toySpec) Kind() string     { return "toy" }
func (s *toySpec) String() string { return "file " + s.Path }

// toys is a directory of such files.
type toys struct{ dir string }

func path(h hold.Hold) string { return h.Spec.(*toySpec).Path }

// at returns where h's file is: at h's place, unless somebody has renamed the file.
func (ts toys) at(h hold.Hold) string {
	files, _ := filepath.Glob(ts.dir + "/*")
	for _, f := range append([]string{path(h)}, files...) {
		if text, _ := os.ReadFile(f); string(text) == string(h.Owner) {
			return f
		}
	}
	return path(h)
}

// owner returns the owner of the file at h's place, or "" if there is none.
func (ts toys) owner(h hold.Hold) (string, error) {
	text, err := os.ReadFile(ts.at(h))
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	return string(text), err
}

func (ts toys) acquire(_ context.Context, h hold.Hold) error {
	// acquire writes the file as a whole or not at all, and never over somebody else's file.
	tmp, err := os.CreateTemp("", "toy")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	tmp.WriteString(string(h.Owner))
	tmp.Close()
	if at := ts.at(h); at != path(h) {
		return os.Rename(at, path(h))
	}
	err = os.Link(tmp.Name(), path(h))
	if !errors.Is(err, os.ErrExist) {
		return err
	}
	owner, err := ts.owner(h)
	if err == nil && owner != string(h.Owner) {
		return fmt.Errorf("%w: %s", hold.ErrForeign, owner)
	}
	return err
}

func (ts toys) verify(_ context.Context, h hold.Hold) error {
	owner, err := ts.owner(h)
	switch {
	case err != nil:
		return err
	case owner != string(h.Owner):
		return hold.ErrGone
	}
	info, err := os.Stat(ts.at(h))
	if err == nil && (info.Mode().Perm()&0o200 == 0 || ts.at(h) != path(h)) {
		return hold.ErrChanged
	}
	return err
}

func (ts toys) release(_ context.Context, h hold.Hold) error {
	owner, err := ts.owner(h)
	if err != nil || owner != string(h.Owner) {
		return err
	}
	return there(os.Remove(ts.at(h)))
}

// there returns nil for the error that a file has gone meanwhile, and any other error as it is.
func there(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

func (ts toys) cut(_ context.Context, h hold.Hold) error {
	owner, err := ts.owner(h)
	if err != nil || owner != string(h.Owner) {
		return err
	}
	return there(os.Chmod(ts.at(h), 0o400))
}

func (ts toys) sever(ctx context.Context, hs []hold.Hold) error {
	for _, h := range hs {
		if err := ts.cut(ctx, h); err != nil {
			return err
		}
	}
	return nil
}

func (ts toys) find(context.Context, *hold.Look) ([]hold.Hold, error) {
	files, err := filepath.Glob(ts.dir + "/*")
	if err != nil {
		return nil, err
	}
	var hs []hold.Hold
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		id, stranger := hold.ParseID(string(text))
		if stranger != nil {
			continue
		}
		if filepath.Base(f) != "only" {
			f = ts.dir + "/" + string(id)
		}
		hs = append(hs, hold.Hold{Owner: id, Spec: &toySpec{Path: f}})
	}
	return hs, nil
}

// kind is the toy kind under test, without a fault. If alone, all files have
// one place.
func kind(t testing.TB, alone bool) Kind {
	ts := toys{t.TempDir()}
	disguise := func(t testing.TB, h hold.Hold) {
		nettest.Must(t, os.Rename(path(h), path(h)+".away"))
	}
	if alone {
		disguise = nil
	}
	return Kind{
		Kind: hold.Kind{
			New:     func() hold.Spec { return &toySpec{} },
			Acquire: ts.acquire,
			Verify:  hold.VerifyEach(ts.verify),
			Release: hold.Each(ts.release),
			Batch:   3,
			Cut:     ts.cut,
			Sever:   ts.sever,
			Settle:  func(context.Context, hold.Hold) error { return nil },
			Find:    ts.find,
		},
		Alone: alone,
		Spec: func(_ testing.TB, owner hold.ID) hold.Spec {
			if alone {
				return &toySpec{Path: ts.dir + "/only"}
			}
			return &toySpec{Path: ts.dir + "/" + string(owner)}
		},
		Example:  &toySpec{Path: "/toys/a", Notes: []string{"a note"}},
		Snapshot: func() string { return listing(ts.dir) },
		Disguise: disguise, Undisguised: "the only place is where it is looked for",
		Foreign: func(t testing.TB, h hold.Hold) func() error {
			nettest.Must(t, os.WriteFile(path(h), []byte("a stranger"), 0o600))
			t.Cleanup(func() { os.Remove(path(h)) })
			return func() error {
				info, err := os.Stat(path(h))
				if err != nil {
					return err
				}
				text, err := os.ReadFile(path(h))
				if err == nil && (string(text) != "a stranger" || info.Mode() != 0o600) {
					return fmt.Errorf("%v %q", info.Mode(), text)
				}
				return err
			}
		},
	}
}

// listing returns a line for each file of a directory, with the file's mode and text.
func listing(dir string) string {
	var lines []string
	files, _ := filepath.Glob(dir + "/*")
	for _, f := range files {
		text, _ := os.ReadFile(f)
		if info, err := os.Stat(f); err == nil {
			lines = append(lines, fmt.Sprintf("%s %v %s", f, info.Mode(), text))
		}
	}
	return strings.Join(lines, "\n")
}

func TestToy(t *testing.T)      { Run(t, kind(t, false)) }
func TestToyAlone(t *testing.T) { Run(t, kind(t, true)) }

// A kind that has nothing optional passes the checks.
func TestToyBare(t *testing.T) {
	k := kind(t, false)
	k.Batch, k.Settle, k.Cut, k.Sever, k.Find, k.Snapshot, k.Foreign, k.Disguise = 0, nil, nil, nil, nil, nil, nil, nil
	Run(t, k)
}

// A kind that fills in its spec, and says so, passes the checks.
func TestToyDiscovers(t *testing.T) {
	k := kind(t, false)
	acquire := k.Acquire
	k.Discovers = true
	var mu sync.Mutex
	k.Acquire = func(ctx context.Context, h hold.Hold) error {
		mu.Lock()
		defer mu.Unlock()
		h.Spec.(*toySpec).Notes = []string{"seen"}
		return acquire(ctx, h)
	}
	Run(t, k)
}
