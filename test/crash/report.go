package main

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

// report prints the run's lines, and keeps what the run has found.
type report struct {
	verbose bool

	mu       sync.Mutex
	points   int // pairs of a call and a verdict that were hit
	faults   int // how many kills or failures there were
	kills    int // kills of the random loop
	missed   int
	residues []string
}

// say prints a line if the run is verbose.
func (r *report) say(format string, args ...any) {
	if r.verbose {
		r.print(format, args...)
	}
}

func (r *report) print(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Printf(format+"\n", args...)
}

// residue notes what was left behind.
func (r *report) residue(where string, err error) {
	r.print("RESIDUE in %s: %v", where, err)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.residues = append(r.residues, where)
}

// scenario prints what a scenario covered.
func (r *report) scenario(s scenario, t *tally, took time.Duration) {
	what := "kills"
	if s.fails {
		what = "failures"
	}
	line := fmt.Sprintf("%-20s %4d calls, %4d points, %4d %s, %5.1f s", s.name, len(t.calls), len(t.covered), t.faults, what, took.Seconds())
	if len(t.missed) > 0 {
		line += fmt.Sprintf("; %d points came up by chance, and not again", len(t.missed))
		r.say("not again: %s", strings.Join(t.missed, "; "))
	}
	r.print("%s", line)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.points += len(t.covered)
	r.faults += t.faults
	r.missed += len(t.missed)
}

// summary prints the last lines of the run. The very last line says whether anything was
// left behind.
func (r *report) summary(err error) {
	if err != nil {
		r.print("crash: %v", err)
	}
	r.print("points: %d covered by %d kills and failures, %d missed", r.points, r.faults, r.missed)
	r.print("kill loop: %d kills", r.kills)
	if err != nil {
		r.print("residue: unknown")
		return
	}
	r.print("residue: %d", len(r.residues))
}
