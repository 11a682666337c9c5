package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/berth-net/berth/conform"
)

// page writes docs/CONFORMANCE.md.
func page(w io.Writer, versions []string, judged []judgement, x explained) error {
	head(w, versions, judged)
	summary(w, judged, x)
	unsupported(w, judged)
	tables(w, judged)
	return write(w, x)
}

func head(w io.Writer, versions []string, judged []judgement) {
	fmt.Fprintf(w, `# Conformance

Written by `+"`make conform`"+`, which runs [`+"`berth conform`"+`](../conform/README.md) on %d lists: Berth's own modes, the
reference plugins, Multus and flannel's plugin. It is of %s of the suite, with %d checks; %s; Linux %s, %s.

[The lists](#the-lists) say how each one fares, and which faults it has; [the checks](#the-checks) say which of them a list does not
pass; and each of [the findings](#the-findings) has a recipe that shows it by hand, without `+"`berth conform`"+`. A test runs each recipe.

flannel's plugin is the last version that was among the reference plugins: later ones, which cannot be had as modules, may have mended what is found here. kindnet's own plugin is no module that could be built here: its list is
judged with the reference plugins that it used to name.
`, len(judged), cmp.Or(strings.Join(suites(judged), " and "), "an unknown version"), len(checks(judged)), strings.Join(versions, "; "), judged[0].Kernel, judged[0].When.UTC().Format("2006-01-02"))
}

// checks returns the names of all checks that the reports have, without versions.
func checks(judged []judgement) []string {
	names := rows(judged)
	for i, name := range names {
		names[i], _, _ = strings.Cut(name, "@")
	}
	return slices.Compact(names)
}

// suites returns the versions of the suite that the reports are of, each as "version 1.2.3".
func suites(judged []judgement) (all []string) {
	for _, j := range judged {
		if v := "version " + j.Suite; j.Suite != "" && !slices.Contains(all, v) {
			all = append(all, v)
		}
	}
	return all
}

// summary writes the table of the lists.
func summary(w io.Writer, judged []judgement, x explained) {
	fmt.Fprint(w, `
## The lists

must, should and own are the bad checks of each level: what the specification says a plugin must or should do, and what is the suite's own.
"-" are checks that cannot be made with the list; "(-)" those that would find again what another check has found. The findings are those
beside what [all plugins](#all-plugins) of others have in common.
`)
	for _, g := range groups {
		fmt.Fprintf(w, "\n| %s | what is judged | pass | must | should | own | - | (-) | findings |\n|---|---|--:|--:|--:|--:|--:|--:|---|\n", g)
		for _, j := range judged {
			if j.group != g {
				continue
			}
			if why := lacking(j); why != "" {
				fmt.Fprintf(w, "| %s | [%s](../test/conform/lists/%s.conflist) | | | | | | | unsupported: see below |\n", j.name, j.what, j.name)
				continue
			}
			fmt.Fprintf(w, "| %s | [%s](../test/conform/lists/%s.conflist) | %d | %d | %d | %d | %d | %d | %s |\n", j.name, j.what, j.name,
				j.Count(conform.Pass), j.of(conform.Must), j.of(conform.Should), j.of(conform.Own),
				j.Count(conform.Unsupported)-j.NotJudged(), j.NotJudged(), links(x.of[j.name]))
		}
	}
}

// of returns how many bad results have a level.
func (j judgement) of(l conform.Level) (n int) {
	for _, r := range j.Results {
		if bad(r.Outcome) && r.Level == l {
			n++
		}
	}
	return n
}

// links links names of findings to their sections, but for those of all plugins.
func links(names []string) string {
	var all []string
	for _, name := range names {
		if slices.ContainsFunc(ofLibrary, func(f finding) bool { return f.name == name }) {
			continue
		}
		all = append(all, fmt.Sprintf("[%s](#%s)", name, name))
	}
	return strings.Join(all, ", ")
}

// lacking returns why a list cannot be judged on this machine: its first ADD needs what the kernel lacks. "": it can.
func lacking(j judgement) string {
	r := result(j, "basic/attach")
	if r == nil || r.Outcome != conform.Unsupported {
		return ""
	}
	return strings.Join(r.Seen, " ")
}

// unsupported writes the lists that cannot be judged on this machine, and those of which there is no report.
func unsupported(w io.Writer, judged []judgement) {
	lists := slices.DeleteFunc(slices.Clone(judged), func(j judgement) bool { return lacking(j) == "" })
	if len(lists) > 0 {
		fmt.Fprint(w, "\nThe kernel of this machine cannot make these lists' interfaces, so that they do not count:\n\n")
	}
	for _, j := range lists {
		fmt.Fprintf(w, "- %s: %s\n", j.name, lacking(j))
	}
	if names := left(judged); len(names) > 0 {
		fmt.Fprintf(w, "\nNot judged in this run: %s.\n", strings.Join(names, ", "))
	}
}

// left returns the names of the subjects that no judgement is of.
func left(judged []judgement) (names []string) {
	for _, s := range subjects {
		if !slices.ContainsFunc(judged, func(j judgement) bool { return j.name == s.name }) {
			names = append(names, s.name)
		}
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
