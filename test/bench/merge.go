package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// merge returns an earlier report in which this one's stages have their new sections and targets. Each of these sections says on which
// machine, and when, it was measured.
func (r *report) merge(old string) string {
	parts := strings.Split(old, "\n## ")
	var out strings.Builder
	out.WriteString(parts[0])
	written := false
	write := func() {
		if !written {
			for _, t := range r.sections {
				out.WriteString(t.text(fmt.Sprintf(", measured apart from the rest, in %s, on %s", time.Since(r.begun).Round(time.Second), r.machine)))
			}
		}
		written = true
	}
	for _, part := range parts[1:] {
		title, body, _ := strings.Cut(part, "\n")
		switch {
		case title == targetsTitle:
			body = r.replaced(body, func(t target) (begins, text string) { return "| " + t.what + " |", t.row })
		case title == heldTitle:
			body = r.replaced(body, func(t target) (begins, text string) { return "- **" + t.what + "**", t.held })
		case r.made(body):
			write()
			continue
		}
		out.WriteString("\n## " + title + "\n" + body)
	}
	write()
	return out.String()
}

// made reports whether one of this report's stages made a section.
func (r *report) made(body string) bool {
	return slices.ContainsFunc(r.sections, func(t *table) bool { return strings.HasPrefix(body, "\n"+stageMark(t.stage)) })
}

// replaced returns a list or a table without its lines about this report's targets, and with this report's lines behind the others.
func (r *report) replaced(body string, lines func(target) (begins, text string)) string {
	var kept, rest strings.Builder // rest: what follows the list
	for l := range strings.Lines(strings.TrimPrefix(body, "\n")) {
		to := &kept
		if l == "\n" || rest.Len() > 0 {
			to = &rest
		}
		if !slices.ContainsFunc(r.targets, func(t target) bool { begins, _ := lines(t); return strings.HasPrefix(l, begins) }) {
			to.WriteString(l)
		}
	}
	for _, t := range r.targets {
		_, text := lines(t)
		kept.WriteString(text)
	}
	return "\n" + kept.String() + rest.String()
}
