package main

import (
	"slices"
	"strings"
)

// finding explains what a check finds at some subjects.
type finding struct {
	check    string   // without its version
	subjects []string // none: all but Berth
	why      string   // with the upstream issue, if one is known
}

// findings are the explanations, the first that fits first.
var findings = []finding{}

// explain returns why a subject does not hold a check; "" is unknown.
func explain(subject, check string) string {
	base, _, _ := strings.Cut(check, "@")
	for _, f := range findings {
		if f.check == base && (len(f.subjects) == 0 || slices.Contains(f.subjects, subject)) {
			return f.why
		}
	}
	return ""
}
