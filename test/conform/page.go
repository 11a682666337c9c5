package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/berth-net/berth/conform"
)

// marks are the cells of the table.
var marks = map[conform.Outcome]string{
	conform.Pass: "pass", conform.Fail: "**FAIL**", conform.Leak: "**LEAK**", conform.Unsupported: "-",
}

// page writes docs/CONFORMANCE.md and returns which findings have no explanation.
func page(w io.Writer, judged []judgement) (unexplained []string) {
	head(w, judged)
	rows := rows(judged)
	verb := ""
	for _, row := range rows {
		if v, _, _ := strings.Cut(row, "/"); v != verb {
			verb = v
			fmt.Fprintf(w, "\n| %s |", verb)
			for _, j := range judged {
				fmt.Fprintf(w, " %s |", j.name)
			}
			fmt.Fprintf(w, "\n|---|%s\n", strings.Repeat(":-:|", len(judged)))
		}
		fmt.Fprintf(w, "| `%s` |", row)
		for _, j := range judged {
			fmt.Fprintf(w, " %s |", cell(j, row))
		}
		fmt.Fprintln(w)
	}
	return append(unexplained, findingsOf(w, judged, rows)...)
}

func head(w io.Writer, judged []judgement) {
	fmt.Fprintf(w, `# Conformance

Written by `+"`make conform`"+`, which runs [`+"`berth conform`"+`](../conform/README.md) on
Berth and on the reference plugins (containernetworking/plugins, in the version
of test/peers/go.mod). Linux %s, %s.
"-" is a check that cannot be made with the plugin. "(-)" is a check that is not judged, because
it would find again what another check has found.

| | what is judged | pass | fail | leak | - | (-) | took |
|---|---|--:|--:|--:|--:|--:|--:|
`, judged[0].Kernel, judged[0].When.UTC().Format("2006-01-02"))
	for _, j := range judged {
		fmt.Fprintf(w, "| %s | [%s](../test/conform/lists/%s.conflist) | %d | %d | %d | %d | %d | %.0f s |\n", j.name, j.what, j.name,
			j.Count(conform.Pass), j.Count(conform.Fail), j.Count(conform.Leak), j.Count(conform.Unsupported)-j.NotJudged(), j.NotJudged(), j.Took.Seconds())
	}
}

// rows returns the names of all checks that ran, in their order.
func rows(judged []judgement) []string {
	var names []string
	for _, c := range conform.Checks() {
		found := map[string]bool{}
		for _, j := range judged {
			for _, r := range j.Results {
				if base, _, _ := strings.Cut(r.Check, "@"); base == c.Name {
					found[r.Check] = true
				}
			}
		}
		names = append(names, slices.Sorted(maps.Keys(found))...)
	}
	return names
}

func result(j judgement, check string) *conform.Result {
	i := slices.IndexFunc(j.Results, func(r conform.Result) bool { return r.Check == check })
	if i < 0 {
		return nil
	}
	return &j.Results[i]
}

func cell(j judgement, check string) string {
	r := result(j, check)
	if r == nil {
		return ""
	}
	if r.Needed != "" {
		return "(-)"
	}
	return marks[r.Outcome]
}

// findingsOf writes a section for each check that is bad with a subject. Subjects with the
// same explanation share it; the page shows what the check saw with the first of these subjects.
func findingsOf(w io.Writer, judged []judgement, rows []string) (unexplained []string) {
	fmt.Fprint(w, "\n## What was found\n")
	none := true
	for _, row := range rows {
		var of []*group
		for _, j := range judged {
			r := result(j, row)
			if r == nil || !r.Outcome.Bad() {
				continue
			}
			why := explain(j.name, row)
			if why == "" {
				unexplained = append(unexplained, j.name+" "+row)
			}
			at := slices.IndexFunc(of, func(g *group) bool { return g.why == why && g.first.Outcome == r.Outcome })
			if at < 0 {
				at = len(of)
				of = append(of, &group{why: why, first: r})
			}
			of[at].names = append(of[at].names, j.name)
		}
		if len(of) == 0 {
			continue
		}
		none = false
		fmt.Fprintf(w, "\n### `%s`\n\n%s: %s.\n", row, of[0].first.Spec, of[0].first.Says)
		for _, g := range of {
			fmt.Fprintf(w, "\n**%s** (%s): %s\n\n```\n%s\n```\n", strings.Join(g.names, ", "), g.first.Outcome,
				cmp.Or(g.why, "not yet explained."), seen(g.first))
		}
	}
	if none {
		fmt.Fprint(w, "\nNothing.\n")
	}
	return unexplained
}

// group is a group of subjects with which a check found the same.
type group struct {
	names []string
	why   string
	first *conform.Result
}

// mostSeen is how many lines of a result the page shows at most.
const mostSeen = 8

func seen(r *conform.Result) string {
	lines := strings.Split(strings.Join(r.Seen, "\n"), "\n")
	if more := len(lines) - mostSeen; more > 1 {
		lines = append(lines[:mostSeen], fmt.Sprintf("... and %d lines more", more))
	}
	return strings.Join(lines, "\n")
}
