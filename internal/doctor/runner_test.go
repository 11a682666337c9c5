package doctor

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/internal/runner"
)

// A runner that serves is found. One whose socket nobody serves any more is not.
func TestLookRunner(t *testing.T) {
	dir := root.Dir(t.TempDir())
	n := New(dir, "", "")
	on := true
	n.config = func() config.Reading {
		return config.Reading{Config: &config.Config{Kubernetes: &config.Kubernetes{Networks: on}}}
	}
	r, err := runner.New(runner.Options{Root: dir, Log: slog.New(slog.DiscardHandler)})
	nettest.Must(t, err)
	ended := make(chan error, 1)
	go func() { ended <- r.Serve() }()
	if f := lookRunner(t.Context(), n); f.Verdict != OK || !strings.Contains(f.Seen, "answers at "+dir.RunnerSocket()) {
		t.Errorf("with a runner: %+v", f)
	}
	nettest.Must(t, r.Shutdown(context.Background()), <-ended)
	if f := lookRunner(t.Context(), n); f.Verdict != Bad || !strings.Contains(f.Fix, "berth-runner --root "+string(dir)) {
		t.Errorf("without a runner: %+v", f)
	}
	on = false
	if f := lookRunner(t.Context(), n); f.Verdict != OK || !strings.Contains(f.Seen, "not needed") {
		t.Errorf("where nobody needs one: %+v", f)
	}
	n.config = func() config.Reading { return config.Reading{Err: fs.ErrInvalid} }
	if f := lookRunner(t.Context(), n); f.Verdict != Unknown {
		t.Errorf("with a configuration that cannot be read: %+v", f)
	}
}

func TestJudgeRunner(t *testing.T) {
	for name, c := range map[string]struct {
		err       error
		want      Verdict
		seen, fix string
	}{
		"no socket":     {fmt.Errorf("dial: %w", unix.ENOENT), Bad, "no berth-runner answers at /run/berth/runner.sock: dial: no such file", "systemctl enable --now berth-runner; in a cluster, by Berth's chart: networks.enabled"},
		"no time":       {fmt.Errorf("asking: %w", context.DeadlineExceeded), Bad, "does not answer at /run/berth/runner.sock within 3s", "systemctl restart berth-runner"},
		"no permission": {fmt.Errorf("dial: %w", unix.EACCES), Unknown, "permission denied", "root"},
	} {
		f := judgeRunner(root.Default, c.err)
		if f.Verdict != c.want || !strings.Contains(f.Seen, c.seen) || !strings.Contains(f.Fix, c.fix) {
			t.Errorf("%s: %+v", name, f)
		}
	}
}
