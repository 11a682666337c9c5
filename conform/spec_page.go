package conform

import (
	"fmt"
	"io"
	"strings"
)

// WriteMatrix writes the obligations by sections, with the checks that judge each, as markdown: SPEC.md.
func WriteMatrix(w io.Writer) error {
	var b strings.Builder
	b.WriteString(`# The specification, by checks

What CNI 0.4.0, 1.0.0 and 1.1.0 ask of plugins, in the suite's own words, and the checks that judge it. The sections are those of 1.1.0, or of
0.4.0 where only that has the obligation. Made of ` + "`conform.Obligations()`: `go -C conform test . -run TestMatrix -update`" + `.

| section | plugin's | judged | not judged | others' |
|---|--:|--:|--:|--:|
`)
	heads := heads()
	for _, h := range heads {
		n := map[string]int{}
		for _, o := range under(h) {
			n[string(o.Binds)]++
			if len(o.Checks) > 0 {
				n["judged"]++
			}
		}
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %d |\n", h, n["plugin"], n["judged"], n["plugin"]-n["judged"], n["runtime"]+n["configuration"])
	}
	b.WriteString("\n## What plugins owe\n\n| section | obligation | 0.4.0 | 1.0.0 | 1.1.0 | judged by |\n|---|---|---|---|---|---|\n")
	for _, h := range heads {
		for _, o := range under(h) {
			if o.Binds == OfPlugin {
				fmt.Fprintf(&b, "| %s | %s (`%s`) |%s %s |\n", h, o.Says, o.ID, o.levels(), o.judges())
			}
		}
	}
	b.WriteString("\n## What others owe\n\nThe suite plays the runtime, and takes the list as it is: it judges neither.\n\n| section | whose | obligation | 0.4.0 | 1.0.0 | 1.1.0 |\n|---|---|---|---|---|---|\n")
	for _, h := range heads {
		for _, o := range under(h) {
			if o.Binds != OfPlugin {
				fmt.Fprintf(&b, "| %s | %s | %s (`%s`) |%s\n", h, o.Binds, o.Says, o.ID, o.levels())
			}
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// heads returns the sections in which there are obligations: those of 1.1.0, and then those of 0.4.0 alone.
func heads() (all []string) {
	seen := map[string]bool{}
	for _, early := range []bool{false, true} {
		for _, o := range obligations {
			if h := o.Head(); (o.Section == "") == early && !seen[h] {
				seen[h] = true
				all = append(all, h)
			}
		}
	}
	return all
}

func under(head string) (all []Obligation) {
	for _, o := range obligations {
		if o.Head() == head {
			all = append(all, o)
		}
	}
	return all
}

// levels are the cells of a row that say how far an obligation binds in each version.
func (o Obligation) levels() string {
	var cells strings.Builder
	for _, v := range judged {
		fmt.Fprintf(&cells, " %s |", o.In(v))
	}
	return cells.String()
}

// judges are the checks of an obligation, or why there is none.
func (o Obligation) judges() string {
	if len(o.Checks) == 0 {
		return "nobody: " + o.Unjudged
	}
	return "`" + strings.Join(o.Checks, "`, `") + "`"
}
