package main

import (
	"slices"
	"testing"

	"github.com/berth-net/berth/conform"
	"github.com/berth-net/berth/test/programs"
)

func TestMain(m *testing.M) { programs.Main(m) }

// needed are checks of capabilities that Berth has. The suite does not judge a list by these checks if
// the list lacks the capabilities.
var needed = []string{"rates/kept", "ports/reached", "ports/conflict", "ports/others", "leak/conntrack"}

// Berth has neither a fail nor a leak, in every mode there is.
func TestBerthConforms(t *testing.T) {
	bin := programs.Own(t)
	for _, s := range subjects {
		if !s.ours {
			continue
		}
		r, err := judge(t.Context(), folders{bin: bin, lists: "."}, s, "")
		if err != nil {
			t.Fatalf("judging %s: %v", s.name, err)
		}
		for _, one := range r.Results {
			if one.Outcome.Bad() {
				t.Errorf("%s: %s: %s: %v\n%s", s.name, one.Check, one.Outcome, one.Seen, one.Repeat)
			}
		}
		for _, name := range needed {
			i := slices.IndexFunc(r.Results, func(one conform.Result) bool { return one.Check == name })
			if i < 0 {
				t.Errorf("%s: there is no check %s", s.name, name)
			} else if one := r.Results[i]; one.Outcome == conform.Unsupported {
				t.Errorf("%s: %s is not judged: %v", s.name, name, one.Seen)
			}
		}
		if passed := r.Count(conform.Pass); passed < 60 {
			t.Errorf("%s: only %d checks pass", s.name, passed)
		}
	}
}

// Every explanation names a check and subjects that exist.
func TestFindings(t *testing.T) {
	checks := map[string]bool{}
	for _, c := range conform.Checks() {
		checks[c.Name] = true
	}
	named := map[string]bool{}
	for _, s := range subjects {
		named[s.name] = true
	}
	for _, f := range findings {
		if !checks[f.check] {
			t.Errorf("there is no check %s", f.check)
		}
		for _, s := range f.subjects {
			if !named[s] {
				t.Errorf("%s: there is no subject %s", f.check, s)
			}
		}
	}
}
