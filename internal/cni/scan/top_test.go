package scan_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/cni/scan"
)

// Top takes the top level apart, whatever the values are.
func TestTop(t *testing.T) {
	deep := strings.Repeat("[", 9*scan.MaxDepth) + strings.Repeat("]", 9*scan.MaxDepth)
	for in, want := range map[string]string{
		` { } `: ``,
		` {"a": 1 ,"b\n\u00e9":{"x":[true,"\"]}"]},"c":"é\/"} `: `["a" 1] ["b\né" {"x":[true,"\"]}"]}] ["c" "é\/"]`,
		`{"a":{"x":1,"x":2},"n":5}`:                             `["a" {"x":1,"x":2}] ["n" 5]`,
		`{"a":"\ud800","n":5}`:                                  `["a" "\ud800"] ["n" 5]`,
		"{\"a\":[\"\xff\n\"],\"n\":5}":                          "[\"a\" [\"\xff\n\"]] [\"n\" 5]",
		`{"a":` + deep + `,"n":5}`:                              `["a" ` + deep + `] ["n" 5]`,
		`{"a":nul,"n":{"x" 1,}}`:                                `["a" nul] ["n" {"x" 1,}]`,
		`{"\ud800":1,"\x":2,"n":5}`:                             `["n" 5]`,
		`{"a":1,"n":5,"\u0061":2}`:                              `["n" 5]`,
	} {
		fields, err := scan.Top([]byte(in), "n")
		var got []string
		for _, f := range fields {
			got = append(got, fmt.Sprintf("[%q %s]", f.Key, f.Value))
		}
		if s := strings.Join(got, " "); err != nil || s != want {
			t.Errorf("%.80s:\n got %.80s, %v\nwant %.80s", in, s, err, want)
		}
	}
	for in, want := range map[string]string{
		``:                   "at byte 0: expected an object, found the end of the input",
		`[]`:                 "at byte 0: expected an object, found '['",
		`{} {}`:              "at byte 3: expected nothing more after an object, found '{'",
		`{"a":}`:             "at byte 5: expected a value, found '}'",
		`{"a":1,}`:           `at byte 7: expected '"', found '}'`,
		`{"a":1 "n":2}`:      "at byte 7: expected ',' or '}', found '\"'",
		`{"a":[1}`:           "at byte 7: expected ']', found '}'",
		`{"a":{"x":1}`:       "at byte 12: expected ',' or '}', found the end of the input",
		`{"a":[1`:            "at byte 7: expected the end of a value, found the end of the input",
		`{"a":"x\"}`:         "at byte 10: the string does not end",
		`{"a":"x\`:           "at byte 8: the string does not end",
		`{"n":1,"\u006e":2}`: `at byte 18: key "n" is there twice`,
	} {
		if _, err := scan.Top([]byte(in), "n"); err == nil || err.Error() != want {
			t.Errorf("Top(%q)\n got %v\nwant %s", in, err, want)
		}
	}
}

// FuzzTop compares Top with Object: what Object accepts, Top reads alike.
func FuzzTop(f *testing.F) {
	for _, s := range seeds {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		top, loose := scan.Top(raw)
		fields, err := scan.Object(raw)
		if err != nil {
			return
		}
		same := func(a, b scan.Field) bool { return a.Key == b.Key && bytes.Equal(a.Value, b.Value) }
		if loose != nil || !slices.EqualFunc(top, fields, same) {
			t.Fatalf("%q, %v; want %q", top, loose, fields)
		}
	})
}
