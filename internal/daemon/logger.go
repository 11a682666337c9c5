package daemon

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// LogFormats are the formats of a log. The first is the default.
func LogFormats() []string { return []string{"text", "json"} }

// Logger returns a logger whose lines w writes in one of LogFormats. It leaves out a warning
// or an error that it has just said (see sayOnce).
func (w *LogWriter) Logger(format string, level slog.Level) (*slog.Logger, error) {
	in, ok := formats[format]
	if !ok {
		return nil, fmt.Errorf("--log-format %.80q: want one of %s", format, strings.Join(LogFormats(), ", "))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.missing = missingIn(in)
	return slog.New(&sayOnce{Handler: in(w, &slog.HandlerOptions{Level: level}), said: &said{}}), nil
}

// logFormat returns a handler that writes lines in one format.
type logFormat func(io.Writer, *slog.HandlerOptions) slog.Handler

var formats = map[string]logFormat{
	"text": text,
	"json": func(w io.Writer, o *slog.HandlerOptions) slog.Handler {
		json := slog.HandlerOptions{ReplaceAttr: withUnit}
		if o != nil {
			json.Level = o.Level
		}
		return slog.NewJSONHandler(w, &json)
	},
}

// withUnit writes a duration with its unit, as a text log does. In JSON it would be a number.
func withUnit(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.String())
	}
	return a
}

func text(w io.Writer, o *slog.HandlerOptions) slog.Handler { return slog.NewTextHandler(w, o) }

// missingIn returns a function that makes, in one format, the line that says how many lines a
// log lacks.
func missingIn(in logFormat) func(lines int) []byte {
	return func(lines int) []byte {
		var line bytes.Buffer
		slog.New(in(&line, nil)).Warn("the agent dropped log lines, because nobody read the log", "lines", lines)
		return line.Bytes()
	}
}

// sayOnce leaves out a warning or an error if the log said the same, word for word, within the last
// second (the constant again): several goroutines may meet the same trouble at once. The next time that
// the log says the warning, the line tells how often sayOnce left the warning out.
type sayOnce struct {
	slog.Handler
	with string // the attributes and groups of the handler itself
	said *said
}

const (
	again      = time.Second
	remembered = 32 // warnings, so that sayOnce keeps little
)

// said are the latest warnings, the newest last.
type said struct {
	mu   sync.Mutex
	last []saying
}

type saying struct {
	text    string
	at      time.Time
	skipped int
}

// Handle is slog.Handler's.
func (h *sayOnce) Handle(ctx context.Context, r slog.Record) error {
	if r.Level < slog.LevelWarn {
		return h.Handler.Handle(ctx, r)
	}
	var text strings.Builder
	fmt.Fprint(&text, r.Level, h.with, r.Message)
	r.Attrs(func(a slog.Attr) bool {
		fmt.Fprint(&text, " ", a)
		return true
	})
	skipped, say := h.said.say(text.String(), r.Time)
	if !say {
		return nil
	}
	if skipped > 0 {
		r.AddAttrs(slog.Int("repeated", skipped))
	}
	return h.Handler.Handle(ctx, r)
}

// say reports whether a warning is to be said now and, if so, how often it was left out since
// it was said last.
func (s *said) say(text string, now time.Time) (skipped int, say bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, was := range s.last {
		if was.text != text {
			continue
		}
		if since := now.Sub(was.at); since >= 0 && since < again {
			s.last[i].skipped++
			return 0, false
		}
		skipped = was.skipped
		s.last = append(s.last[:i], s.last[i+1:]...)
		break
	}
	if len(s.last) == remembered {
		s.last = append(s.last[:0], s.last[1:]...)
	}
	s.last = append(s.last, saying{text, now, 0})
	return skipped, true
}

// WithAttrs is slog.Handler's.
func (h *sayOnce) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &sayOnce{h.Handler.WithAttrs(attrs), h.with + fmt.Sprint(attrs), h.said}
}

// WithGroup is slog.Handler's.
func (h *sayOnce) WithGroup(name string) slog.Handler {
	return &sayOnce{h.Handler.WithGroup(name), h.with + name + ".", h.said}
}
