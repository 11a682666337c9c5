package ledger

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Replace makes a whole new ledger where one is lost or damaged, and keeps the old file.
func TestReplace(t *testing.T) {
	for name, before := range map[string]func(t *testing.T, opts Options) (kept []byte){
		"lost":  func(*testing.T, Options) []byte { return nil },
		"empty": func(t *testing.T, opts Options) []byte { writeAll(t, opts.Path, nil); return nil },
		"damaged": func(t *testing.T, opts Options) []byte {
			l := open(t, opts)
			mustCommit(t, l, Begin(newOwner()))
			l.Close()
			raw, err := os.ReadFile(opts.Path)
			must(t, err)
			for i := range raw {
				raw[i] ^= 0x55
			}
			writeAll(t, opts.Path, raw)
			return raw
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClock()
			opts := testOptions(filepath.Join(t.TempDir(), "ledger.db"), c)
			want := before(t, opts)
			writeAll(t, opts.Path+".rebuilt", []byte("of one that was killed"))
			writeAll(t, asidePath(opts.Path, 7), make([]byte, 1<<20)) // likewise
			ops := []Op{Enter(Epoch{Boot: "b"}), Quarantined(c.now, c.now.Add(time.Hour))}
			gone := newOwner(address("p/1"))
			for range replaceBy {
				ops = append(ops, Begin(newOwner()))
			}
			ops = append(ops, Begin(gone), Releasing(gone.ID, c.now))
			kept, err := Replace(opts, ops)
			must(t, err)
			for _, half := range []string{opts.Path + ".rebuilt", asidePath(opts.Path, 7)} {
				if _, err := os.Stat(half); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("%s is left (%v)", half, err)
				}
			}
			if want == nil && kept != "" {
				t.Errorf("kept %s of nothing", kept)
			}
			if want != nil {
				if have, err := os.ReadFile(kept); err != nil || string(have) != string(want) {
					t.Errorf("what was damaged is not kept: %d bytes, %v", len(have), err)
				}
			}
			l := open(t, opts)
			defer l.Close()
			if o, ok := l.Owner(gone.ID); !ok || o.Wanted() || len(l.Owners()) != replaceBy+1 || l.Epoch().Boot != "b" {
				t.Errorf("replaced by %d owners, epoch %+v, %+v", len(l.Owners()), l.Epoch(), o)
			}
			if q := l.Quarantine(); !q.Since.Equal(c.now) || !q.Until.Equal(c.now.Add(time.Hour)) {
				t.Errorf("quarantine %+v", q)
			}
			if _, err := Replace(opts, nil); !errors.Is(err, ErrLocked) {
				t.Errorf("replacing one that is in use: %v", err)
			}
			if left, _ := filepath.Glob(opts.Path + ".rebuilt*"); len(left) > 0 {
				t.Errorf("left: %s", left)
			}
		})
	}
}

// A Replace that fails leaves the old file in its place.
func TestReplaceFails(t *testing.T) {
	c := newClock()
	opts := testOptions(filepath.Join(t.TempDir(), "ledger.db"), c)
	writeAll(t, opts.Path, []byte("damaged"))
	twice := newOwner()
	fails := func(want error, ops ...Op) {
		if _, err := Replace(opts, ops); !errors.Is(err, want) {
			t.Errorf("Replace says %v, want %v", err, want)
		}
		if raw, err := os.ReadFile(opts.Path); err != nil || string(raw) != "damaged" {
			t.Errorf("after it: %q, %v", raw, err)
		}
		if left, _ := filepath.Glob(opts.Path + ".*"); len(left) > 0 {
			t.Errorf("left: %s", left)
		}
	}
	fails(ErrExists, Begin(twice), Begin(twice))
	opts.volume = &hooked{renames: func(string) error { return unix.EIO }}
	fails(unix.EIO, Begin(twice))
	opts.volume = &hooked{links: func(string) error { return unix.ENOSPC }}
	fails(unix.ENOSPC, Begin(twice))
}

// If the new ledger is in place, and its name may not be durable, Replace says so, and returns the
// old file's new name.
func TestReplaceNotDurable(t *testing.T) {
	opts := testOptions(filepath.Join(t.TempDir(), "ledger.db"), newClock())
	writeAll(t, opts.Path, []byte("damaged"))
	opts.volume = &hooked{folder: func(string) error { return unix.EIO }}
	kept, err := Replace(opts, []Op{Begin(newOwner())})
	if !errors.Is(err, unix.EIO) || kept == "" || !strings.Contains(err.Error(), "in place") || !strings.Contains(err.Error(), kept) {
		t.Errorf("kept %q, %v", kept, err)
	}
	if raw, err := os.ReadFile(kept); err != nil || string(raw) != "damaged" {
		t.Errorf("kept %q, %v", raw, err)
	}
	if _, err := Open(opts); !errors.Is(err, unix.EIO) {
		t.Errorf("Open says %v", err)
	}
	opts.volume = nil
	if n := len(open(t, opts).Owners()); n != 1 {
		t.Errorf("%d owners", n)
	}
}

// A quarantine survives other commits and a reopening. Setting the clock back does not make
// it longer than a whole quarantine from then on.
func TestQuarantine(t *testing.T) {
	c := newClock()
	opts := testOptions(filepath.Join(t.TempDir(), "ledger.db"), c)
	l := open(t, opts)
	if q := l.Quarantine(); q != (Quarantine{}) {
		t.Errorf("a new ledger's quarantine: %+v", q)
	}
	if err := l.Commit(t.Context(), Quarantined(c.now, c.now.Add(-1))); !errors.Is(err, ErrInvalid) {
		t.Errorf("one that ends before it begins: %v", err)
	}
	mustCommit(t, l, Quarantined(c.now, c.now.Add(time.Hour)))
	mustCommit(t, l, Begin(newOwner()))
	l.Close()
	c.now = c.now.Add(-24 * time.Hour)
	l = open(t, opts)
	defer l.Close()
	if q := l.Quarantine(); !q.Since.Equal(c.now) || !q.Until.Equal(c.now.Add(time.Hour)) {
		t.Errorf("after the clock was set back to %s: %+v", c.now, q)
	}
	if text := string(mustJSON(t, l.Snapshot())); !strings.Contains(text, `"quarantine":{"since"`) {
		t.Errorf("not in the snapshot: %.300s", text)
	}
}

func writeAll(t *testing.T, path string, raw []byte) {
	t.Helper()
	must(t, os.WriteFile(path, raw, 0o600))
}

func mustJSON(t *testing.T, v any) []byte {
	t.Helper()
	raw, err := json.Marshal(v)
	must(t, err)
	return raw
}

// When the first agent of a state folder began is known for as long as the ledger lasts.
func TestFounded(t *testing.T) {
	opts := testOptions(filepath.Join(t.TempDir(), "ledger.db"), newClock())
	l := open(t, opts)
	if first, known := l.First(); known {
		t.Errorf("a ledger that nobody founded says %+v", first)
	}
	l.Close()
	want := First{Boot: "b", Started: 7}
	if _, err := Replace(opts, []Op{Founded(want)}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		l = open(t, opts)
		if first, known := l.First(); !known || first != want {
			t.Errorf("it says %+v, %t", first, known)
		}
		mustCommit(t, l, Begin(newOwner()))
		l.Close()
	}
}
