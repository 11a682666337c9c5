package scan_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/berth-net/berth/internal/cni/scan"
	"github.com/berth-net/berth/internal/nettest"
)

func TestObject(t *testing.T) {
	fields, err := scan.Object([]byte(` {"a": 1 ,"b\n\u00e9\ud83d\ude00":{"x":[true,null,-1.5e+3]},"":"é\/"} ` + "\n"))
	nettest.Must(t, err)
	want := `["a" 1] ["b\né😀" {"x":[true,null,-1.5e+3]}] ["" "é\/"]`
	var got []string
	for _, f := range fields {
		got = append(got, fmt.Sprintf("[%q %s]", f.Key, f.Value))
	}
	if s := strings.Join(got, " "); s != want {
		t.Errorf("got  %s\nwant %s", s, want)
	}
}

func TestObjectRefuses(t *testing.T) {
	deep := strings.Repeat("[", scan.MaxDepth) + strings.Repeat("]", scan.MaxDepth)
	for in, want := range map[string]string{
		``:                         "at byte 0: expected an object, found the end of the input",
		`[]`:                       "at byte 0: expected an object, found '['",
		"\xff":                     "at byte 0: expected an object, found byte 0xff, which is not UTF-8",
		`{`:                        "at byte 1: expected '\"', found the end of the input",
		`{} {}`:                    "at byte 3: expected nothing more after an object, found '{'",
		`{"a":1,}`:                 "at byte 7: expected '\"', found '}'",
		`{"a":1 "b":2}`:            "at byte 7: expected ',' or '}', found '\"'",
		`{"a" 1}`:                  "at byte 5: expected ':', found '1'",
		`{"a":1,"a":2}`:            `at byte 7: key "a" appears twice`,
		`{"a":1,"\u0061":2}`:       `at byte 7: key "a" appears twice`,
		`{"x":[{"a":1,"a":2}]}`:    `at byte 13: key "a" appears twice`,
		`{"a":}`:                   "at byte 5: expected a value, found '}'",
		`{"a":nul}`:                "at byte 5: expected a value, found 'n'",
		`{"a":+1}`:                 "at byte 5: expected a value, found '+'",
		`{"a":01}`:                 "at byte 6: expected ',' or '}', found '1'",
		`{"a":1.}`:                 "at byte 7: expected a digit, found '}'",
		`{"a":-}`:                  "at byte 6: expected a digit, found '}'",
		`{"a":1e}`:                 "at byte 7: expected a digit, found '}'",
		`{"a":[1,]}`:               "at byte 8: expected a value, found ']'",
		`{"a":[1}`:                 "at byte 7: expected ',' or ']', found '}'",
		`{"a":"x`:                  "at byte 7: the string does not end",
		`{"a":"x\`:                 "at byte 8: expected an escaped character, found the end of the input",
		`{"a":"\x"}`:               "at byte 7: expected an escaped character, found 'x'",
		`{"a":"\u12`:               "at byte 10: the string does not end",
		`{"a":"\u+123"}`:           `at byte 8: expected four hexadecimal digits, found "+123"`,
		`{"a":"\ud800"}`:           "at byte 6: half of a surrogate pair",
		`{"a":"\ud800\u0041"}`:     "at byte 6: half of a surrogate pair",
		`{"a":"\udc00\ud800"}`:     "at byte 6: half of a surrogate pair",
		"{\"a\":\"\n\"}":           "at byte 6: control character 0x0a in a string",
		"{\"a\":\"\x00\"}":         "at byte 6: control character 0x00 in a string",
		"{\"a\":\"\xc0\xaf\"}":     "at byte 6: byte 0xc0 is not UTF-8",
		"{\"a\":\"\xed\xa0\x80\"}": "at byte 6: byte 0xed is not UTF-8",
		`{"a":` + deep + `}`:       "at byte 68: nested deeper than 64 levels",
		`{'a':1}`:                  "at byte 1: expected '\"', found '\\''",
		`{"a":1}//`:                "at byte 7: expected nothing more after an object, found '/'",
	} {
		_, err := scan.Object([]byte(in))
		if err == nil || err.Error() != want {
			t.Errorf("Object(%q)\n got %v\nwant %s", in, err, want)
		}
		var syntax *scan.SyntaxError
		if err != nil && !errors.As(err, &syntax) {
			t.Errorf("Object(%q): %T, want *SyntaxError", in, err)
		}
	}
	if _, err := scan.Object([]byte(`{"a":` + deep[1:len(deep)-1] + `}`)); err != nil {
		t.Errorf("%d levels: %v", scan.MaxDepth, err)
	}
}

func TestArray(t *testing.T) {
	elements, err := scan.Array([]byte(` [1, "a" ,[],{ }] `))
	nettest.Must(t, err)
	if got := string(bytes.Join(elements, []byte("|"))); got != `1|"a"|[]|{ }` {
		t.Errorf("got %s", got)
	}
	if elements, err := scan.Array([]byte(`[]`)); err != nil || len(elements) != 0 {
		t.Errorf("empty: %q, %v", elements, err)
	}
	if _, err := scan.Array([]byte(`{}`)); err == nil {
		t.Error("an object passed as an array")
	}
}

func TestString(t *testing.T) {
	got, err := scan.String([]byte(`"\"\\\/\b\f\n\r\t\u00e9é"`))
	if want := "\"\\/\b\f\n\r\téé"; err != nil || got != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	for _, in := range []string{`null`, `"a"b`, `1`, ``} {
		if got, err := scan.String([]byte(in)); err == nil {
			t.Errorf("String(%s) = %q, want an error", in, got)
		}
	}
}

// seeds are inputs on which parsers often fail.
var seeds = []string{
	`{}`, `{"a":1}`, `{"a":{"b":[1,2,{"c":null}]}}`, `{"a":"\ud83d\ude00"}`, `{"\u0000":""}`,
	`{"a":1,"a":2}`, `{"a":1}x`, `{"a":"\ud800"}`, "{\"a\":\"\xff\"}", `{"a":1e999}`, `{"a":-0}`,
	`{"a":00}`, `[[[[[[`, `{"a":"\`, `{"a":"\u`, `null`, "\ufeff{}", `{"a":"\u2028"}`, `{"A":1,"a":2}`,
}

// FuzzObject compares Object with encoding/json. Both read an accepted input alike. If
// Object refuses an input, encoding/json refuses it too, or this package is stricter on
// purpose.
func FuzzObject(f *testing.F) {
	for _, s := range seeds {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		fields, err := scan.Object(raw)
		var want map[string]json.RawMessage
		stdErr := json.Unmarshal(raw, &want)
		if err != nil {
			for _, stricter := range []string{"appears twice", "nested deeper", "not UTF-8", "surrogate"} {
				if strings.Contains(err.Error(), stricter) {
					return
				}
			}
			if stdErr == nil && want != nil {
				t.Fatalf("refused: %v", err)
			}
			return
		}
		if stdErr != nil {
			t.Fatalf("accepted, but: %v", stdErr)
		}
		if len(fields) != len(want) {
			t.Fatalf("%d fields, want %d", len(fields), len(want))
		}
		for _, f := range fields {
			v, ok := want[f.Key]
			if !ok || !bytes.Equal(v, f.Value) {
				t.Fatalf("key %q: %q, want %q", f.Key, f.Value, v)
			}
			if text, err := scan.String(f.Value); err == nil {
				var std string
				if err := json.Unmarshal(v, &std); err != nil || std != text {
					t.Fatalf("string %s: %q, want %q (%v)", v, text, std, err)
				}
			}
		}
	})
}

// A string that AppendString has written is read as the same string.
func FuzzAppendString(f *testing.F) {
	for _, s := range append(seeds, "\x7f\x00\x1f\"\\\n\t") {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		raw := scan.AppendString(nil, text)
		got, err := scan.String(raw)
		if want := strings.ToValidUTF8(text, "\ufffd"); err != nil || utf8.ValidString(text) && got != want {
			t.Fatalf("%s reads as %q, %v, want %q", raw, got, err, want)
		}
		var std string
		if err := json.Unmarshal(raw, &std); err != nil || std != got {
			t.Fatalf("%s: encoding/json reads %q, %v", raw, std, err)
		}
	})
}
