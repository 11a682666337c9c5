package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/berth-net/berth/conform"
)

// tables writes a table of checks for each group of lists. A table has the checks that are bad with a list of the group; a line names the checks that are bad
// nowhere.
func tables(w io.Writer, judged []judgement) {
	judged = slices.DeleteFunc(slices.Clone(judged), func(j judgement) bool { return lacking(j) != "" })
	rows := rows(judged)
	fmt.Fprint(w, "\n## The checks\n\nA cell has the level of what the list breaks, and \"leak\" if something is left.\n")
	for _, g := range groups {
		of := slices.DeleteFunc(slices.Clone(judged), func(j judgement) bool { return j.group != g })
		var some []string
		for _, row := range rows {
			if slices.ContainsFunc(of, func(j judgement) bool { return isBad(j, row) }) {
				some = append(some, row)
			}
		}
		if len(of) > 0 {
			table(w, g, of, some)
		}
	}
	fine := slices.DeleteFunc(slices.Clone(rows), func(row string) bool {
		return slices.ContainsFunc(judged, func(j judgement) bool { return isBad(j, row) })
	})
	fmt.Fprintf(w, "\nBad with none of the lists: `%s`.\n", strings.Join(fine, "`, `"))
}

// table writes the table of a group.
func table(w io.Writer, group string, of []judgement, rows []string) {
	if len(rows) == 0 {
		fmt.Fprintf(w, "\n**%s**: no check is bad.\n", group)
		return
	}
	fmt.Fprintf(w, "\n| %s |", group)
	for _, j := range of {
		fmt.Fprintf(w, " %s |", j.name)
	}
	fmt.Fprintf(w, "\n|---|%s\n", strings.Repeat(":-:|", len(of)))
	for _, row := range rows {
		fmt.Fprintf(w, "| `%s` |", row)
		for _, j := range of {
			fmt.Fprintf(w, " %s |", cell(j, row))
		}
		fmt.Fprintln(w)
	}
}

func isBad(j judgement, check string) bool {
	r := result(j, check)
	return r != nil && bad(r.Outcome)
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

// cell says how a list fares in a check.
func cell(j judgement, check string) string {
	r := result(j, check)
	switch {
	case r == nil:
		return ""
	case r.Needed != "":
		return "(-)"
	case r.Outcome == conform.Pass:
		return "pass"
	case r.Outcome == conform.Unsupported:
		return "-"
	case r.Outcome == conform.Fail:
		return fmt.Sprintf("**%s**", r.Level)
	}
	return fmt.Sprintf("**%s**, %s", r.Level, r.Outcome)
}
