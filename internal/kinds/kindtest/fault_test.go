package kindtest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/nettest"
)

// one is a function of a kind that takes one hold.
type one = func(context.Context, hold.Hold) error

// before returns a function that calls first, and then f unless first fails.
func before(f one, first func(hold.Hold) error) one {
	return func(ctx context.Context, h hold.Hold) error {
		if err := first(h); err != nil {
			return err
		}
		return f(ctx, h)
	}
}

// removeAll removes all files in the folder that h's file is in.
func removeAll(h hold.Hold) error {
	files, err := filepath.Glob(filepath.Dir(path(h)) + "/*")
	for _, f := range files {
		os.Remove(f)
	}
	return err
}

func exists(h hold.Hold) bool {
	_, err := os.Stat(path(h))
	return err == nil
}

// The tests plant these faults in the toy kind. Each fault names the check that must see it.
var faults = []struct {
	check, name string
	alone       bool
	plant       func(k *Kind)
}{
	{"take-twice", "the second take fails", false, func(k *Kind) {
		k.Acquire = before(k.Acquire, func(h hold.Hold) error {
			if exists(h) {
				return errors.New("exists")
			}
			return nil
		})
	}},
	{"take-twice", "the second take adds something", false, func(k *Kind) {
		k.Acquire = before(k.Acquire, func(h hold.Hold) error {
			if exists(h) {
				return os.WriteFile(path(h)+".again", nil, 0o600)
			}
			return nil
		})
	}},
	{"take-twice", "the spec changes unannounced", false, func(k *Kind) {
		k.Acquire = before(k.Acquire, func(h hold.Hold) error {
			h.Spec.(*toySpec).Notes = []string{"seen"}
			return nil
		})
	}},
	{"take-twice", "nothing is taken", false, func(k *Kind) {
		k.Acquire = func(context.Context, hold.Hold) error { return nil }
	}},
	{"take-twice", "Verify says that what is not there is", false, func(k *Kind) {
		k.Verify = hold.VerifyEach(func(context.Context, hold.Hold) error { return nil })
	}},
	{"release-twice", "nothing is released", false, func(k *Kind) {
		k.Release = hold.Each(func(context.Context, hold.Hold) error { return nil })
	}},
	{"release-twice", "something stays behind", false, func(k *Kind) {
		k.Acquire = before(k.Acquire, func(h hold.Hold) error { return os.WriteFile(path(h)+".lock", nil, 0o600) })
	}},
	{"release-twice", "what is not there is an error", false, notThereIsAnError},
	{"release-untaken", "what is not there is an error", false, notThereIsAnError},
	{"release-untaken", "something is made", false, func(k *Kind) {
		release := k.Release
		k.Release = func(ctx context.Context, hs []hold.Hold) []error {
			for _, h := range hs {
				os.WriteFile(path(h)+".released", nil, 0o600)
			}
			return release(ctx, hs)
		}
	}},
	{"release-from-record", "the spec does not say enough", false, func(k *Kind) {
		release := k.Release
		known := make(map[hold.Spec]bool)
		k.Acquire = before(k.Acquire, func(h hold.Hold) error { known[h.Spec] = true; return nil })
		k.Release = func(ctx context.Context, hs []hold.Hold) []error {
			if len(hs) == 1 && !known[hs[0].Spec] {
				return []error{nil}
			}
			return release(ctx, hs)
		}
	}},
	{"leave-other-owner", "everybody's are released", false, func(k *Kind) {
		k.Release = hold.Each(func(_ context.Context, h hold.Hold) error { return removeAll(h) })
	}},
	{"leave-other-owner", "the only one is anybody's to release", true, func(k *Kind) {
		k.Release = hold.Each(func(_ context.Context, h hold.Hold) error { return removeAll(h) })
	}},
	{"leave-other-owner", "the only one is replaced", true, func(k *Kind) {
		k.Acquire = before(k.Acquire, removeAll)
	}},
	{"leave-foreign", "it is replaced", false, func(k *Kind) {
		k.Acquire = before(k.Acquire, removeAll)
	}},
	{"leave-foreign", "it passes for ours", false, func(k *Kind) {
		acquire := k.Acquire
		k.Acquire = func(ctx context.Context, h hold.Hold) error {
			if exists(h) {
				return nil
			}
			return acquire(ctx, h)
		}
	}},
	{"leave-foreign", "it is verified as ours", false, func(k *Kind) {
		k.Verify = hold.VerifyEach(func(_ context.Context, h hold.Hold) error {
			if exists(h) {
				return nil
			}
			return hold.ErrGone
		})
	}},
	{"leave-foreign", "it is cut off", false, func(k *Kind) {
		k.Cut = func(_ context.Context, h hold.Hold) error { return os.Chmod(path(h), 0o400) }
	}},
	{"leave-foreign", "it is released", false, func(k *Kind) {
		k.Release = hold.Each(func(_ context.Context, h hold.Hold) error { os.Remove(path(h)); return nil })
	}},
	{"leave-foreign", "something is left beside it", false, func(k *Kind) {
		k.Acquire = before(k.Acquire, func(h hold.Hold) error { return os.WriteFile(path(h)+".new", nil, 0o600) })
	}},
	{"batch", "the first failure ends it", false, func(k *Kind) {
		release := k.Release
		k.Release = func(ctx context.Context, hs []hold.Hold) []error {
			errs := make([]error, len(hs))
			for i, h := range hs {
				if !exists(h) {
					break
				}
				errs[i] = release(ctx, []hold.Hold{h})[0]
			}
			return errs
		}
	}},
	{"batch", "answers are missing", false, func(k *Kind) {
		release := k.Release
		k.Release = func(ctx context.Context, hs []hold.Hold) []error {
			return slices.DeleteFunc(release(ctx, hs), func(err error) bool { return err == nil })
		}
	}},
	{"batch", "answers are in another order", false, func(k *Kind) {
		verify := k.Verify
		k.Verify = func(ctx context.Context, look *hold.Look, hs []hold.Hold) []error {
			errs := verify(ctx, look, hs)
			slices.Reverse(errs)
			return errs
		}
	}},
	{"batch", "no hold has an answer", false, func(k *Kind) {
		release := k.Release
		k.Release = func(ctx context.Context, hs []hold.Hold) []error {
			return append(release(ctx, hs), make([]error, max(0, 1-len(hs)))...)
		}
	}},
	{"at-once", "two takes get in each other's way", false, func(k *Kind) {
		var inside atomic.Int32
		k.Acquire = before(k.Acquire, func(hold.Hold) error {
			if inside.Add(1) > 1 {
				return errors.New("another is at it")
			}
			for inside.Load() == 1 {
				runtime.Gosched()
			}
			return nil
		})
	}},
	{"find", "nothing is found", false, func(k *Kind) {
		k.Find = func(context.Context, *hold.Look) ([]hold.Hold, error) { return nil, nil }
	}},
	{"find", "it fails", false, func(k *Kind) {
		k.Find = func(context.Context, *hold.Look) ([]hold.Hold, error) { return nil, errors.New("cannot") }
	}},
	{"find", "it is found twice", false, func(k *Kind) {
		find := k.Find
		k.Find = func(ctx context.Context, look *hold.Look) ([]hold.Hold, error) {
			hs, err := find(ctx, look)
			return append(hs, hs...), err
		}
	}},
	{"find", "what is found cannot be released", false, func(k *Kind) {
		find, release := k.Find, k.Release
		k.Find = func(ctx context.Context, look *hold.Look) ([]hold.Hold, error) {
			hs, err := find(ctx, look)
			for _, h := range hs {
				h.Spec.(*toySpec).Notes = []string{"found"}
			}
			return hs, err
		}
		k.Release = func(ctx context.Context, hs []hold.Hold) []error {
			if len(hs[0].Spec.(*toySpec).Notes) > 0 {
				return make([]error, len(hs))
			}
			return release(ctx, hs)
		}
	}},
	{"find", "it is found under another name", false, func(k *Kind) {
		find := k.Find
		k.Find = func(ctx context.Context, look *hold.Look) ([]hold.Hold, error) {
			hs, err := find(ctx, look)
			for _, h := range hs {
				s := h.Spec.(*toySpec)
				s.Path = filepath.Dir(s.Path) + "/./" + filepath.Base(s.Path)
			}
			return hs, err
		}
	}},
	{"find", "all are called the same", false, func(k *Kind) {
		k.Spec = func(t testing.TB, _ hold.ID) hold.Spec { return &toySpec{Path: os.TempDir() + "/one and the same"} }
	}},
	{"find", "what was asked for is found though it is not there", false, func(k *Kind) {
		spec, find := k.Spec, k.Find
		var promised []hold.Hold
		k.Spec = func(t testing.TB, owner hold.ID) hold.Spec {
			s := spec(t, owner)
			promised = append(promised, hold.Hold{Owner: owner, Spec: s})
			return s
		}
		k.Find = func(ctx context.Context, look *hold.Look) ([]hold.Hold, error) {
			hs, err := find(ctx, look)
			return append(hs, promised...), err
		}
	}},
	{"cut", "what is not there cannot be cut", false, func(k *Kind) {
		k.Cut = func(_ context.Context, h hold.Hold) error { return os.Chmod(path(h), 0o400) }
	}},
	{"cut", "everybody is cut off", false, func(k *Kind) {
		k.Cut = before(k.Cut, func(h hold.Hold) error {
			files, err := filepath.Glob(filepath.Dir(path(h)) + "/*")
			for _, f := range files {
				os.Chmod(f, 0o400)
			}
			return err
		})
	}},
	{"cut", "what is cut off is not released", false, func(k *Kind) {
		cut, release := k.Cut, k.Release
		gone := make(map[hold.ID]bool)
		k.Cut = before(cut, func(h hold.Hold) error { gone[h.Owner] = true; return nil })
		k.Release = func(ctx context.Context, hs []hold.Hold) []error {
			errs := make([]error, len(hs))
			for i, h := range hs {
				if !gone[h.Owner] {
					errs[i] = release(ctx, []hold.Hold{h})[0]
				}
			}
			return errs
		}
	}},
	{"cut", "everybody is severed", false, func(k *Kind) {
		k.Sever = func(_ context.Context, hs []hold.Hold) error {
			files, err := filepath.Glob(filepath.Dir(path(hs[0])) + "/*")
			for _, f := range files {
				os.Chmod(f, 0o400)
			}
			return err
		}
	}},
	{"cut", "what is not there cannot be severed", false, func(k *Kind) {
		k.Sever = func(_ context.Context, hs []hold.Hold) error {
			for _, h := range hs {
				if err := os.Chmod(path(h), 0o400); err != nil {
					return err
				}
			}
			return nil
		}
	}},
	{"take-twice", "what is taken does not settle", false, func(k *Kind) {
		k.Settle = func(context.Context, hold.Hold) error { return errors.New("not yet") }
	}},
	{"cut-beside-release", "a cut brings back what is released", false, func(k *Kind) {
		k.Cut = before(k.Cut, func(h hold.Hold) error {
			for exists(h) {
				runtime.Gosched()
			}
			return os.WriteFile(path(h), []byte(h.Owner), 0o600)
		})
	}},
	{"cut-beside-release", "a cut beside a release fails", false, func(k *Kind) {
		k.Cut = before(k.Cut, func(h hold.Hold) error {
			for exists(h) {
				runtime.Gosched()
			}
			return errors.New("it is gone")
		})
	}},
	{"disguised", "what is not at its place is released", false, func(k *Kind) {
		release := k.Release
		k.Release = func(ctx context.Context, hs []hold.Hold) []error {
			errs := make([]error, len(hs))
			for i, h := range hs {
				if exists(h) {
					errs[i] = release(ctx, []hold.Hold{h})[0]
				}
			}
			return errs
		}
	}},
	{"disguised", "what is not at its place is not found", false, func(k *Kind) {
		find := k.Find
		k.Find = func(ctx context.Context, look *hold.Look) ([]hold.Hold, error) {
			hs, err := find(ctx, look)
			return slices.DeleteFunc(hs, func(h hold.Hold) bool { return !exists(h) }), err
		}
	}},
	{"disguised", "what is not at its place is there", false, func(k *Kind) {
		k.Verify = hold.VerifyEach(func(context.Context, hold.Hold) error { return nil })
	}},
}

func notThereIsAnError(k *Kind) {
	release := k.Release
	k.Release = func(ctx context.Context, hs []hold.Hold) []error {
		errs := release(ctx, hs)
		for i, h := range hs {
			if errs[i] == nil {
				errs[i] = os.Remove(path(h) + ".token")
			}
		}
		return errs
	}
	k.Acquire = before(k.Acquire, func(h hold.Hold) error { return os.WriteFile(path(h)+".token", nil, 0o600) })
}

// The check that a planted fault is for sees the fault.
func TestFaultsAreSeen(t *testing.T) {
	for _, fault := range faults {
		t.Run(fault.check+"/"+fault.name, func(t *testing.T) {
			k := kind(t, fault.alone)
			fault.plant(&k)
			sees(t, fault.check, k, true)
		})
	}
}

// sees fails the test unless the check fails (want) or passes (not want).
func sees(t *testing.T, check string, k Kind, want bool) {
	t.Helper()
	ran := false
	for _, c := range checks {
		if c.name != check {
			continue
		}
		ran = true
		if r := nettest.Record(t, func(t testing.TB) { c.run(t, k) }); r.Failed != want {
			t.Errorf("the check fails: %t", r.Failed)
		}
	}
	if !ran {
		t.Errorf("there is no check %s", check)
	}
}

// Each check sees at least one of the faults.
func TestEveryCheckHasAFault(t *testing.T) {
	for _, c := range checks {
		seen := false
		for _, f := range faults {
			seen = seen || f.check == c.name
		}
		for _, f := range optionFaults {
			seen = seen || f.check == c.name
		}
		if !seen {
			t.Errorf("no fault is planted for %s", c.name)
		}
	}
}
