package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/berth-net/berth/conform"
)

// write writes a section for each finding that a list shows, by plugins.
func write(w io.Writer, x explained) error {
	node, err := recipe("node")
	if err != nil {
		return err
	}
	fmt.Fprintf(w, `
## The findings

Each recipe begins in a node of its own, with one pod: in the shell of `+"`sudo unshare --mount --net bash`"+`, which ends with the shell, after
the lines below. sudo drops CNI_PATH: for plugins that are not in /opt/cni/bin it is `+"`sudo env CNI_PATH=/their/folder unshare --mount --net bash`"+`.
Some recipes need the programs iptables, nft and conntrack.

%s
The last command of a recipe succeeds if the plugin has the fault, and fails if the plugin is mended.
`, code("sh", node))
	plugin := ""
	for _, f := range findings {
		of := x.results[f.name]
		if len(of) == 0 {
			continue
		}
		if f.plugin != plugin {
			plugin = f.plugin
			fmt.Fprintf(w, "\n### %s\n", plugin)
		}
		lines, err := recipe(f.name)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "\n<a id=%q></a>\n\n#### %s (%s)\n\n%s\n\nSeen by %s. Upstream: %s\n\n%s", f.name, f.title, worst(of), f.text,
			sightings(of), cmp.Or(f.upstream, "no issue is known."), code("sh", lines))
		fmt.Fprintf(w, "\n`%s` of %s says:\n\n%s", of[0].Check, of[0].list, code("", seen(of[0].Result)))
	}
	return nil
}

func code(language string, lines []string) string {
	return "```" + language + "\n" + strings.Join(lines, "\n") + "\n```\n"
}

// worst returns the strictest level of results.
func worst(of []seenBy) conform.Level {
	levels := conform.Levels()
	return slices.MinFunc(of, func(a, b seenBy) int {
		return cmp.Compare(slices.Index(levels, a.Level), slices.Index(levels, b.Level))
	}).Level
}

// sightings says which checks have shown a finding with which lists. Checks with the same lists stand together.
func sightings(of []seenBy) string {
	var checks []string
	lists := map[string][]string{}
	for _, one := range of {
		if lists[one.Check] == nil {
			checks = append(checks, one.Check)
		}
		lists[one.Check] = append(lists[one.Check], one.list)
	}
	var texts []string
	for len(checks) > 0 {
		with := lists[checks[0]]
		same := slices.DeleteFunc(slices.Clone(checks), func(c string) bool { return !slices.Equal(lists[c], with) })
		checks = slices.DeleteFunc(checks, func(c string) bool { return slices.Contains(same, c) })
		texts = append(texts, "`"+strings.Join(same, "`, `")+"` with "+strings.Join(with, ", "))
	}
	return strings.Join(texts, "; ")
}

// The page shows at most mostSeen lines of a result, and mostOfLine characters of a line.
const (
	mostSeen   = 4
	mostOfLine = 400
)

func seen(r conform.Result) []string {
	lines := strings.Split(strings.Join(r.Seen, "\n"), "\n")
	lines = slices.DeleteFunc(lines, func(l string) bool { return strings.TrimSpace(l) == "" })
	if more := len(lines) - mostSeen; more > 1 {
		lines = append(lines[:mostSeen], fmt.Sprintf("... and %d lines more", more))
	}
	for i, l := range lines {
		if len(l) > mostOfLine {
			lines[i] = strings.ToValidUTF8(l[:mostOfLine], "") + "..."
		}
	}
	return lines
}
