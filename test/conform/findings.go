package main

import (
	"cmp"
	"embed"
	"fmt"
	"slices"
	"strings"

	"github.com/berth-net/berth/conform"
)

// finding is one fault of a plugin, which checks show with some lists. findings/NAME.sh is a recipe that shows it by hand, after findings/node.sh: at
// most ten lines, the last of which succeeds only if the fault is there.
type finding struct {
	name     string // the recipe's, and the anchor in the page
	plugin   string // the title under which the page has it
	title    string // as that of an issue: what the plugin does
	text     string // what happens and why, what obliges, and what harm it does
	upstream string // issues that are known; "": none
	shows    []sight
}

// sight says that a check is bad with some lists because of a finding.
type sight struct {
	check string   // without its version
	lists []string // nil: all that are no Berth's
}

func (s sight) of(list subject, check string) bool {
	base, _, _ := strings.Cut(check, "@")
	return s.check == base && (s.lists == nil && !list.ours || slices.Contains(s.lists, list.name))
}

// recipes has a file for each finding, and node.sh.
//
//go:embed findings/*.sh
var recipes embed.FS

// recipe returns the text of a file below findings, with a line for each element.
func recipe(name string) ([]string, error) {
	raw, err := recipes.ReadFile("findings/" + name + ".sh")
	if err != nil {
		return nil, fmt.Errorf("reading the recipe of a finding: %w", err)
	}
	return strings.Split(strings.TrimSuffix(string(raw), "\n"), "\n"), nil
}

// explained are findings with the bad results that they explain.
type explained struct {
	results     map[string][]seenBy // by the finding's name
	of          map[string][]string // the names of findings by list
	unexplained []string            // bad results without a finding
	unseen      []string            // findings without a bad result
}

// seenBy is a bad result with a list.
type seenBy struct {
	list string
	conform.Result
}

// explain finds the findings of all bad results. Lists that this kernel cannot make do not count.
func explain(judged []judgement) explained {
	x := explained{results: map[string][]seenBy{}, of: map[string][]string{}}
	for _, j := range judged {
		if lacking(j) != "" {
			continue
		}
		for _, r := range j.Results {
			if !bad(r.Outcome) {
				continue
			}
			names := findingsOf(j.subject, r.Check)
			if len(names) == 0 {
				x.unexplained = append(x.unexplained, j.name+": "+r.Check+": "+cmp.Or(strings.Join(r.Seen, "\n"), string(r.Outcome)))
			}
			for _, name := range names {
				x.results[name] = append(x.results[name], seenBy{j.name, r})
				if !slices.Contains(x.of[j.name], name) {
					x.of[j.name] = append(x.of[j.name], name)
				}
			}
		}
	}
	for _, f := range findings {
		if len(x.results[f.name]) == 0 {
			x.unseen = append(x.unseen, f.name)
		}
	}
	return x
}

// findingsOf returns the names of the findings that explain a bad result.
func findingsOf(list subject, check string) (names []string) {
	for _, f := range findings {
		if slices.ContainsFunc(f.shows, func(s sight) bool { return s.of(list, check) }) {
			names = append(names, f.name)
		}
	}
	return names
}

// bad reports whether the page has to explain an outcome.
func bad(o conform.Outcome) bool { return o.Bad() || o == conform.Flaky }

// findings are all explanations, in the order in which the page has them.
var findings = slices.Concat(ofLibrary, ofMain, ofFurther, ofMetaPlugins)
