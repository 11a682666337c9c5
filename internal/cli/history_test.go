package cli

import (
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/boottime"
	"github.com/berth-net/berth/internal/history"
	"github.com/berth-net/berth/internal/routes/routestest"
)

// If a former run of the agent promised a pod's release, the present run does not know when the
// pod was cut off.
func TestTimelineOfACut(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for asker, want := range map[string][]string{
		api.AskedDelete: {"ADD", "release promised: DEL", "cut off", "gone; its addresses rest"},
		"":              {"ADD", "release promised, by a former run of the agent", "cut off, at the latest", "gone; its addresses rest"},
	} {
		var got []string
		for _, m := range timeline(api.Past{Attachment: api.Attachment{Created: at, Releasing: &at}, AskedBy: asker, CutOff: &at, Ended: &at}) {
			got = append(got, m.text)
		}
		if !slices.Equal(got, want) {
			t.Errorf("released by %q: %q", asker, got)
		}
	}
}

// If the agent hangs, the command reads in the history's files which pods were gone before, and
// does so soon.
func TestHistoryOfHanging(t *testing.T) {
	a := hanging(t)
	gone := routestest.Gone()
	now := time.Now()
	gone.Ended = &now
	h := history.New(history.Options{
		Dir: history.Path(a.Dir), Log: slog.New(slog.DiscardHandler), Limits: func() history.Limits { return history.Limits{Records: 10, Age: time.Hour} },
		Now: func() history.Now { return history.Now{Wall: now, Boot: bootID(), Boottime: boottime.Now()} },
	})
	h.Add(gone)
	h.Settle()
	h.Close()
	var out, errs strings.Builder
	app := &app{stdout: &out, stderr: &errs, patience: time.Millisecond, now: time.Now}
	code := app.run(t.Context(), []string{"--root", string(a.Dir), "history"})
	if code != 0 || !strings.Contains(errs.String(), "does not answer in time") || !strings.Contains(out.String(), "default/web-0") {
		t.Errorf("exit code %d, %q\n%s", code, errs.String(), out.String())
	}
}
