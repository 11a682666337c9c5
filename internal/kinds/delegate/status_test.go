package delegate_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berth-net/berth/internal/kinds/delegate"
)

// STATUS asks the plugins in their order, up to the first one that is not ready. Plugins and lists that have no STATUS are ready.
func TestStatus(t *testing.T) {
	w := newWorld(t)
	_, s := w.newest()
	must(t, w.Status(t.Context(), s))
	wantVerbs(t, w, "maker STATUS netns=false", "other STATUS netns=false")
	heal := w.fails("maker", "STATUS")
	if err := w.Status(t.Context(), s); err == nil || !strings.Contains(err.Error(), "plugin maker: STATUS of maker fails") {
		t.Errorf("STATUS: %v", err)
	}
	wantVerbs(t, w, "maker STATUS netns=false")
	old := *s
	old.Version = "1.0.0"
	must(t, w.Status(t.Context(), &old))
	wantVerbs(t, w)
	heal()
	must(t, os.Rename(filepath.Join(w.bin(), "other"), filepath.Join(w.bin(), "away")))
	if err := w.Status(t.Context(), s); err == nil || !strings.Contains(err.Error(), "plugin other: ") {
		t.Errorf("a plugin that is missing: %v", err)
	}
	for _, bad := range []string{`[]`, `{}`} {
		unread := *s
		unread.Plugins = []string{bad}
		if err := w.Status(t.Context(), &unread); err == nil {
			t.Errorf("%s is ready", bad)
		}
	}
	w.Exec = &executes{w.Exec, "STATUS", func(context.Context) error { return &types.Error{Code: types.ErrInvalidEnvironmentVariables} }}
	s.Plugins = s.Plugins[:1]
	must(t, w.Status(t.Context(), s))
}

// A plugin that hangs is not ready, nor is a runner that does not answer.
func TestStatusHangs(t *testing.T) {
	w := newWorld(t)
	_, s := w.newest()
	ctx, cancel := context.WithCancel(t.Context())
	w.Exec = &executes{w.Exec, "STATUS", func(ctx context.Context) error {
		if end, limited := ctx.Deadline(); !limited || time.Until(end) > delegate.StatusTime {
			t.Errorf("STATUS has until %v", end)
		}
		cancel()
		<-ctx.Done()
		return ctx.Err()
	}}
	if err := w.Status(ctx, s); !errors.Is(err, context.Canceled) {
		t.Errorf("STATUS: %v", err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	w.Exec = &frozen{w.Exec, cancel}
	if err := w.Status(ctx, s); !errors.Is(err, context.Canceled) {
		t.Errorf("STATUS, and nobody finds its plugins: %v", err)
	}
}
