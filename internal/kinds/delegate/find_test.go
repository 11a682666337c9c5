package delegate_test

import (
	"context"
	"errors"
	"testing"

	"github.com/containernetworking/cni/pkg/invoke"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kinds/delegate"
)

// frozen is a libcni that finds no plugin before a context ends. It calls asked when it looks for one.
type frozen struct {
	invoke.Exec
	asked func()
}

func (f *frozen) FindInPath(string, []string) (string, error) {
	f.asked()
	return "", errors.New("it is too late to look for a plugin")
}

func (f *frozen) FindUntil(ctx context.Context, _ string, _ []string) (string, error) {
	f.asked()
	<-ctx.Done()
	return "", ctx.Err()
}

// A release that interrupts an ADD waits for no runner that does not find the plugins, nor does the release itself, whose tries are limited.
func TestFindHangs(t *testing.T) {
	w := newWorld(t)
	h, s := w.hold()
	ctx, interrupt := context.WithCancel(t.Context())
	w.Delegates = delegate.New(delegate.Options{Exec: &frozen{w.Exec, interrupt}, Open: w.Open, Run: w.Run})
	if err := w.Kind().Acquire(ctx, h); !errors.Is(err, context.Canceled) {
		t.Errorf("ADD: %v", err)
	}
	s.Folders = append(s.Folders, t.TempDir()) // where there is one folder, nobody looks
	ctx, cancel := context.WithCancel(t.Context())
	w.Delegates = delegate.New(delegate.Options{Exec: &frozen{w.Exec, cancel}, Open: w.Open, Run: "second"})
	if err := w.Kind().Release(ctx, []hold.Hold{h})[0]; !errors.Is(err, context.Canceled) {
		t.Errorf("DEL: %v", err)
	}
	wantVerbs(t, w)
}
