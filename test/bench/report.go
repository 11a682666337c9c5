package main

import (
	"fmt"
	"os"
	"strings"
	"time"
)

// report has the results of a run: tables and targets. It is written as Markdown.
type report struct {
	quick    bool
	machine  string
	begun    time.Time
	stage    string // that runs
	sections []*table
	targets  []target
}

func newReport(opts options, dir string) *report {
	return &report{quick: opts.quick, machine: machine(dir), begun: time.Now()}
}

// target is what a figure should be, and whether it is.
type target struct {
	what string
	row  string // of the table of targets
	held string // why it is missed, as an item of a list; "": it is met
}

// table is a section of the report.
type table struct {
	stage string // that made it
	title string
	rows  [][]string // the first row has the columns' names
	notes []string
}

// section begins a table.
func (r *report) section(title string, columns ...string) *table {
	t := &table{stage: r.stage, title: title, rows: [][]string{columns}}
	r.sections = append(r.sections, t)
	return t
}

func (t *table) row(cells ...string) { t.rows = append(t.rows, cells) }

// note adds a sentence that explains the table.
func (t *table) note(format string, args ...any) {
	t.notes = append(t.notes, fmt.Sprintf(format, args...)+".")
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
	t, verdict := target{what: what}, "met"
	if !met {
		verdict = fmt.Sprintf("**missed by %.0f%%**", by)
		t.held = fmt.Sprintf("- **%s**: %s\n", what, reason(what))
	}
	t.row = line([]string{what, fmt.Sprintf("%s %.4g %s", than, limit, unit), fmt.Sprintf("%.3g %s", got, unit), verdict})
	r.targets = append(r.targets, t)
}

// line is one row of a Markdown table.
func line(cells []string) string { return "| " + strings.Join(cells, " | ") + " |\n" }

// rule returns the line below the columns' names.
func rule(columns int) string { return strings.Repeat("|---", columns) + "|\n" }

// preamble says how to read the tables.
const preamble = `# Benchmarks

Written by ` + "`make bench`" + `; do not edit. All figures are from one run, but those of sections that say so, in fresh namespaces, in
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

// The sections that say which targets are met.
const (
	targetsTitle = "Targets"
	heldTitle    = "Why targets are missed"
)

// text is the report in Markdown.
func (r *report) text() string {
	var s strings.Builder
	s.WriteString(preamble)
	fmt.Fprintf(&s, "%s of %s on %s.\n", r.kind(), time.Since(r.begun).Round(time.Second), r.machine)
	var rows, held strings.Builder
	for _, t := range r.targets {
		rows.WriteString(t.row)
		held.WriteString(t.held)
	}
	if rows.Len() > 0 {
		fmt.Fprintf(&s, "\n## %s\n\n%s%s", targetsTitle, targetsHead(), &rows)
	}
	if held.Len() > 0 {
		fmt.Fprintf(&s, "\n## %s\n\n%s", heldTitle, &held)
	}
	for _, t := range r.sections {
		s.WriteString(t.text(""))
	}
	return s.String()
}

func (r *report) kind() string {
	if r.quick {
		return "Quick run (few rounds: not for comparison)"
	}
	return "Full run"
}

func targetsHead() string { return line([]string{"what", "target", "measured", ""}) + rule(4) }

// text is the section in Markdown, or "" if the stage had nothing to measure. about goes behind the name of the stage.
func (t *table) text(about string) string {
	if len(t.rows) == 1 && len(t.notes) == 0 {
		return ""
	}
	var s strings.Builder
	fmt.Fprintf(&s, "\n## %s\n\n%s%s.", t.title, stageMark(t.stage), about)
	for _, n := range t.notes {
		s.WriteString(" " + n)
	}
	s.WriteString("\n")
	for i, row := range t.rows {
		if i == 0 {
			s.WriteString("\n" + line(row) + rule(len(row)))
		} else {
			s.WriteString(line(row))
		}
	}
	return s.String()
}

// stageMark begins the text of a stage's section. It tells people what to run, and merge which sections to replace.
func stageMark(stage string) string { return "Stage `" + stage + "`" }

// write writes the report to a file, or to standard output. A report of a part of the stages replaces only their part of the file.
func (r *report) write(file string, part bool) error {
	if file == "" {
		_, err := os.Stdout.WriteString(r.text())
		return err
	}
	text := r.text()
	if part {
		old, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("reading the report of which a part is to be replaced: %w", err)
		}
		text = r.merge(string(old))
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}
