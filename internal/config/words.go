package config

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v2"
)

// goTypes are the words for what the YAML package says in Go's.
var goTypes = []struct {
	goes *regexp.Regexp
	ours string
}{
	{regexp.MustCompile(`field (.*) not found in type config\.\w+`), `unknown key "$1"`},
	{regexp.MustCompile(`field (.*) already set in type config\.\w+`), `key "$1" is there twice`},
	{regexp.MustCompile(`cannot unmarshal !!.*into int$`), "want a number"},
	{regexp.MustCompile(`cannot unmarshal !!.*into bool$`), "want true or false"},
	{regexp.MustCompile(`cannot unmarshal !!.*into string$`), "want a word"},
	{regexp.MustCompile(`cannot unmarshal !!.*into \[\]config\.said\[string\]$`), "want a list, such as [10.88.0.0/16]"},
	{regexp.MustCompile(`cannot unmarshal !!.*into \[\]config\.said\[.*filePool\]$`), "want a list, such as [{name: default, cidrs: [10.88.0.0/16]}]"},
	{regexp.MustCompile(`cannot unmarshal !!.*into config\.filePool`), "want keys and values, such as {name: default, cidrs: [10.88.0.0/16]}"},
	{regexp.MustCompile(`cannot unmarshal !!.*into config\.fileMasquerade`), "want keys and values, such as {enabled: true}"},
	{regexp.MustCompile(`cannot unmarshal !!.*into config\.file$`), "want keys and values, such as mtu: 1500"},
}

// slips are the words for what the YAML package says of common slips.
var slips = map[string]string{
	"mapping values are not allowed in this context": "is a space missing after a colon, or a line indented too far?",
	"did not find expected ',' or ']'":               "a [ without its ]",
	"did not find expected ',' or '}'":               "a { without its }",
	"did not find expected key":                      "a line that is not indented as the one before it",
	"did not find expected '-' indicator":            "a line that is not indented as the one before it",
	"could not find expected ':'":                    "a key without its colon",
}

var lineOf = regexp.MustCompile(`^line (\d+): `)

// plain says a YAML error of a text in the file's words: what is wrong of type
// with the line as it stands there.
func plain(err error, text []byte) error {
	lines := strings.Split(string(text), "\n")
	var many *yaml.TypeError
	if !errors.As(err, &many) {
		return slip(strings.TrimPrefix(err.Error(), "yaml: "), lines)
	}
	said := make([]string, len(many.Errors))
	for i, s := range many.Errors {
		said[i] = s
		for _, t := range goTypes {
			said[i] = t.goes.ReplaceAllString(said[i], t.ours)
		}
		at, what, _ := strings.Cut(said[i], ": ")
		if n := line(s); strings.HasPrefix(what, "want ") && n <= len(lines) {
			said[i] = fmt.Sprintf("%s: `%.80s`: %s", at, strings.TrimSpace(lines[n-1]), what)
		}
	}
	return errors.New(strings.Join(said, "; "))
}

// slip says what makes a text no YAML. The package's line is that of the slip
// or one beside it.
func slip(s string, lines []string) error {
	tab := slices.IndexFunc(lines, func(l string) bool {
		indent := l[:len(l)-len(strings.TrimLeft(l, " \t"))]
		return strings.Contains(indent, "\t")
	})
	if tab >= 0 {
		return fmt.Errorf("line %d: is indented with a tab: YAML has spaces alone", tab+1)
	}
	n := line(s)
	s = lineOf.ReplaceAllString(s, "")
	if ours, ok := slips[s]; ok {
		s = ours
	}
	return fmt.Errorf("near line %d: %s", n, s)
}

// line returns the line that an error of the YAML package names, which has
// none where it is the first.
func line(s string) int {
	if m := lineOf.FindStringSubmatch(s); m != nil {
		if n, err := strconv.Atoi(m[1]); err == nil && n > 0 {
			return n
		}
	}
	return 1
}

// said is a value of a file, and where it stands there.
type said[T any] struct {
	value *T // nil: not said
	line  int
}

// UnmarshalYAML reads the value. Its line is only told in errors, such as of
// reading it as what nothing can be read as.
func (s *said[T]) UnmarshalYAML(unmarshal func(any) error) error {
	s.value = new(T)
	if err := unmarshal(s.value); err != nil {
		return err
	}
	var none chan int
	var no *yaml.TypeError
	if errors.As(unmarshal(&none), &no) {
		s.line = line(no.Errors[0])
	}
	return nil
}

// or returns what is said, or else the default.
func (s said[T]) or(otherwise T) T {
	if s.value != nil {
		return *s.value
	}
	return otherwise
}

// wrong says where in the file an error of the value is, if there is one.
func (s said[T]) wrong(err error) error {
	if err == nil || s.value == nil {
		return err
	}
	return fmt.Errorf("line %d: %w", s.line, err)
}
