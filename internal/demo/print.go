package demo

import (
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// printer prints what happens when it happens.
type printer struct {
	out   io.Writer
	live  bool // out is a terminal: the next line may replace an unfinished one
	begun time.Time

	mu    sync.Mutex
	drawn bool // an unfinished line is on the screen
}

func newPrinter(out *os.File) *printer {
	_, err := unix.IoctlGetTermios(int(out.Fd()), unix.TCGETS)
	return &printer{out: out, live: err == nil, begun: time.Now()}
}

// Printing ignores errors: they do not fail the demo, whose exit code tells how it went.

// printf prints whole lines.
func (p *printer) printf(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	_, _ = fmt.Fprintf(p.out, format, args...)
}

// step prints what the demo has done, with the time since the beginning.
func (p *printer) step(what, format string, args ...any) {
	p.printf("%s\n", p.line(what, format, args...))
}

// progress shows how far a step is, on a terminal only. The next line replaces it.
func (p *printer) progress(what string, done, all int) {
	if !p.live {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	_, _ = fmt.Fprint(p.out, p.line(what, "%d of %d", done, all))
	p.drawn = true
}

func (p *printer) line(what, format string, args ...any) string {
	return fmt.Sprintf("%6.2f s  %-8s  ", time.Since(p.begun).Seconds(), what) + fmt.Sprintf(format, args...)
}

// clear removes an unfinished line.
func (p *printer) clear() {
	if p.drawn {
		_, _ = fmt.Fprint(p.out, "\r\x1b[K")
		p.drawn = false
	}
}

// times prints a table of how long verbs took.
func (p *printer) times(verbs []string, took map[string][]time.Duration) {
	p.printf("\n            calls       p50       p99\n")
	for _, verb := range verbs {
		t := took[verb]
		p.printf("  %-8s  %5d  %s  %s\n", verb, len(t), millis(quantile(t, 0.50)), millis(quantile(t, 0.99)))
	}
	p.printf("  of the runtime's calls, %d at once: program start, agent, kernel, ledger on a tmpfs\n\n", width)
}

func millis(d time.Duration) string { return fmt.Sprintf("%5.1f ms", float64(d)/1e6) }

// quantile returns the smallest element such that at least the share q of all elements is not greater
// than this element.
func quantile(all []time.Duration, q float64) time.Duration {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(all))
	i := int(q * float64(len(sorted)))
	if float64(i) == q*float64(len(sorted)) && i > 0 {
		i--
	}
	return sorted[i]
}
