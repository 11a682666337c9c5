package daemon

import (
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// logTo returns the lines that write makes in a log of the given format.
func logTo(t *testing.T, format string, write func(*slog.Logger)) []string {
	t.Helper()
	r := &logReader{free: make(chan struct{})}
	close(r.free)
	w := NewLogWriter(r)
	log, err := w.Logger(format, slog.LevelInfo)
	must(t, err)
	write(log)
	w.Close(time.Minute)
	return r.lines()
}

// Each line of a JSON log is a JSON object, also the one that says that lines are missing.
func TestLogFormats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &logReader{free: make(chan struct{}), err: errors.New("no space left")}
		close(r.free)
		w := NewLogWriter(r)
		log, err := w.Logger("json", slog.LevelInfo)
		must(t, err)
		log.Info("lost")
		synctest.Wait()
		r.fail(nil)
		log.Debug("not said")
		log.Warn("heard", "pod", "a/b", "err", errors.New(`a "quoted" error`), "took", 1500*time.Microsecond)
		w.Close(time.Minute)
		got := r.lines()
		if len(got) != 2 {
			t.Fatalf("the log says %q", got)
		}
		for i, want := range []map[string]any{
			{"level": "WARN", "msg": "the agent dropped log lines, because nobody read the log", "lines": 1.0},
			{"level": "WARN", "msg": "heard", "pod": "a/b", "err": `a "quoted" error`, "took": "1.5ms"},
		} {
			line := map[string]any{}
			if err := json.Unmarshal([]byte(got[i]), &line); err != nil {
				t.Fatalf("%s: %v", got[i], err)
			}
			for key, value := range want {
				if line[key] != value {
					t.Errorf("%s: %s is %v, want %v", got[i], key, line[key], value)
				}
			}
		}
	})
	if got := logTo(t, "text", func(log *slog.Logger) { log.Warn("heard", "n", 1) }); len(got) != 1 || !strings.HasSuffix(got[0], "level=WARN msg=heard n=1") {
		t.Errorf("the text log says %q", got)
	}
	if _, err := NewLogWriter(&logReader{}).Logger("xml", 0); err == nil || !strings.Contains(err.Error(), "want one of text, json") {
		t.Errorf("xml: %v", err)
	}
}

// The log says a warning once, however many goroutines meet the same trouble at once. When the log says
// the warning the next time, the line tells how often it was left out. The log also says a warning that
// differs in a word, and every line that is no warning.
func TestSaidOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got := logTo(t, "text", func(log *slog.Logger) {
			for range 3 {
				log.Warn("trouble", "err", errors.New("full"))
				log.Error("trouble", "err", errors.New("full"))
				log.With("room", "a").Warn("trouble", "err", errors.New("full"))
				log.Info("done")
			}
			log.Warn("trouble", "err", errors.New("empty"))
			time.Sleep(again)
			log.Warn("trouble", "err", errors.New("full"))
			time.Sleep(again)
			log.Warn("trouble", "err", errors.New("full"))
		})
		var said []string
		for _, line := range got {
			_, line, _ = strings.Cut(line, " ")
			said = append(said, line)
		}
		const trouble = "msg=trouble err=full"
		want := []string{
			"level=WARN " + trouble, "level=ERROR " + trouble, "level=WARN msg=trouble room=a err=full", "level=INFO msg=done",
			"level=INFO msg=done", "level=INFO msg=done", "level=WARN msg=trouble err=empty",
			"level=WARN " + trouble + " repeated=2", "level=WARN " + trouble,
		}
		if strings.Join(said, "\n") != strings.Join(want, "\n") {
			t.Errorf("said:\n%s\nwant:\n%s", strings.Join(said, "\n"), strings.Join(want, "\n"))
		}
	})
}

// However many different warnings there are, the log remembers few.
func TestSaidIsBounded(t *testing.T) {
	s := &said{}
	now := time.Now()
	for i := range 10 * remembered {
		if _, say := s.say(strings.Repeat("x", i), now); !say {
			t.Errorf("warning %d is not said", i)
		}
	}
	if len(s.last) != remembered {
		t.Errorf("%d are remembered", len(s.last))
	}
}
