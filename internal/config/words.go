package config

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// slips has clearer texts for the YAML package's errors about common slips. slip finds such an error by
// its text alone: a text that is no YAML has no nodes.
var slips = map[string]string{
	"mapping values are not allowed in this context": "is a space missing after a colon, or a line indented too far?",
	"did not find expected ',' or ']'":               "a [ without its ]",
	"did not find expected ',' or '}'":               "a { without its }",
	"did not find expected key":                      "a line is not indented like the one before it",
	"did not find expected '-' indicator":            "a line is not indented like the one before it",
	"could not find expected ':'":                    "a key without its colon",
}

var lineOf = regexp.MustCompile(`^line (\d+): `)

// slip returns an error that says why a text is no YAML. The package names the slip's line, or a
// line next to it.
func slip(err error, lines []string) error {
	tab := slices.IndexFunc(lines, func(l string) bool {
		indent := l[:len(l)-len(strings.TrimLeft(l, " \t"))]
		return strings.Contains(indent, "\t")
	})
	if tab >= 0 {
		return fmt.Errorf("line %d: is indented with a tab: YAML allows only spaces", tab+1)
	}
	s := strings.TrimPrefix(err.Error(), "yaml: ")
	n := line(s)
	s = lineOf.ReplaceAllString(s, "")
	if strings.HasPrefix(s, "did not find expected ") { // the package counts these lines from 0
		n = min(n+1, len(lines))
	}
	if ours, ok := slips[s]; ok {
		s = ours
	}
	return fmt.Errorf("near line %d: %s", n, s)
}

// line returns the line that an error of the YAML package names. The package names no line
// if the slip is in the first line.
func line(s string) int {
	if m := lineOf.FindStringSubmatch(s); m != nil {
		if n, err := strconv.Atoi(m[1]); err == nil && n > 0 {
			return n
		}
	}
	return 1
}
