package main

import (
	"fmt"
	"os"
	"strings"
	"time"
)

// report has the results of a run: tables, targets and notes. It is written as Markdown.
type report struct {
	quick    bool
	machine  string
	begun    time.Time
	sections []*table
	targets  []string // rows
	held     []string // why targets are missed
	notes    []string
}

func newReport(opts options, dir string) *report {
	return &report{quick: opts.quick, machine: machine(dir), begun: time.Now()}
}

// table is a section of the report.
type table struct {
	title string
	rows  [][]string // the first row has the columns' names
}

// section begins a table.
func (r *report) section(title string, columns ...string) *table {
	t := &table{title: title, rows: [][]string{columns}}
	r.sections = append(r.sections, t)
	return t
}

func (t *table) row(cells ...string) { t.rows = append(t.rows, cells) }

// note adds a line that is about no target.
func (r *report) note(format string, args ...any) {
	r.notes = append(r.notes, fmt.Sprintf(format, args...))
}

// atMost compares a figure with a target that it should not exceed.
func (r *report) atMost(what string, got, limit float64, unit string) {
	r.judge(what, got <= limit, got, "at most", limit, (got/limit-1)*100, unit)
}

// atLeast compares a figure with a target that it should reach.
func (r *report) atLeast(what string, got, limit float64, unit string) {
	r.judge(what, got >= limit, got, "at least", limit, (1-got/limit)*100, unit)
}

func (r *report) judge(what string, met bool, got float64, than string, limit, by float64, unit string) {
	verdict := "met"
	if !met {
		verdict = fmt.Sprintf("**missed by %.0f%%**", by)
		r.held = append(r.held, fmt.Sprintf("- **%s**: %s\n", what, reason(what)))
	}
	r.targets = append(r.targets, line([]string{what, fmt.Sprintf("%s %.4g %s", than, limit, unit), fmt.Sprintf("%.3g %s", got, unit), verdict}))
}

// line is one row of a Markdown table.
func line(cells []string) string { return "| " + strings.Join(cells, " | ") + " |\n" }

// rule returns the line below the columns' names.
func rule(columns int) string { return strings.Repeat("|---", columns) + "|\n" }

// preamble says how to read the tables.
const preamble = `# Benchmarks

Written by ` + "`make bench`" + `; do not edit. All figures are from one run in fresh namespaces, in
which the contestants took turns in every round. Two floors are Go plugins that do nothing: **bare**
links nothing (test/peers/bare), and **noop**, "the floor", has the CNI project's skeleton
(test/peers/noop); libcni drives both like the others. A p50 is the median of all rounds' p50s;
"rounds' p50" has the least and the greatest of these. A p99 is of all samples. A ratio is the
median of the ratios within each round; behind it are the least and the greatest ratio. A
difference that is smaller than this spread is noise. "One at a time" is in network namespaces
that nobody has used before. Every attachment has one IPv4 address, unless its row says
otherwise. A time is all that a runtime waits for, execs and libcni's cache included.
` + "`berth+wait`" + ` is Berth with ` + "`\"wait\": true`" + `: DEL answers when the link is gone, as the other
plugins' DEL does. "Agent's CPU" is the agent's processor time, in user and in kernel, divided by the
number of calls; a DEL's is until the links are gone. "Plugins' CPU" is that of the plugins' processes.
A target in ms, or in things a second, says something about a machine like the one that set it. Where
that is fairer, such a target has a second row, with the same figure as a ratio to something in the same
run: to the processor time of a bare plugin, to the kernel alone (test/bench/pace.go), to a node with as
many network namespaces, to a Go map. The fastest plugin known, kindnet's (ADD 5.7 ms and DEL 28 ms on such a
machine), is missing, because the Go module proxy does not have it.

`

// text is the report in Markdown.
func (r *report) text() string {
	var s strings.Builder
	s.WriteString(preamble)
	kind := "Full run"
	if r.quick {
		kind = "Quick run (few rounds: not for comparison)"
	}
	fmt.Fprintf(&s, "%s of %s on %s.\n", kind, time.Since(r.begun).Round(time.Second), r.machine)
	if len(r.targets) > 0 {
		s.WriteString("\n## Targets\n\n")
		s.WriteString(line([]string{"what", "target", "measured", ""}) + rule(4))
		for _, t := range r.targets {
			s.WriteString(t)
		}
	}
	if len(r.held) > 0 {
		s.WriteString("\n## Why targets are missed\n\n" + strings.Join(r.held, ""))
	}
	for _, n := range r.notes {
		s.WriteString("\n" + n + ".\n")
	}
	for _, t := range r.sections {
		if len(t.rows) == 1 { // the stage had nothing to measure
			continue
		}
		fmt.Fprintf(&s, "\n## %s\n\n", t.title)
		for i, row := range t.rows {
			s.WriteString(line(row))
			if i == 0 {
				s.WriteString(rule(len(row)))
			}
		}
	}
	return s.String()
}

// write writes the report to a file, or to standard output.
func (r *report) write(file string) error {
	if file == "" {
		_, err := os.Stdout.WriteString(r.text())
		return err
	}
	if err := os.WriteFile(file, []byte(r.text()), 0o644); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}
