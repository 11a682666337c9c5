package conform

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

// A report that is no such report is refused, and the error names what is wrong.
func TestParseReport(t *testing.T) {
	for text, want := range map[string]string{
		`{"suite": "` + Version + `", "later": 1, "results": [{"check": "a/b", "outcome": "pass", "level": "own"}]}`: "",
		`[]`:                  "no report in JSON",
		`{"suite": "99.0.0"}`: `suite "99.0.0": expected`,
		`{"suite": "` + Version + `", "results": [{"check": "a/b", "outcome": "good", "level": "own"}]}`: `"a/b": outcome "good"`,
		`{"suite": "` + Version + `", "results": [{"check": "a/b", "outcome": "pass", "level": "may"}]}`: `"a/b": level "may"`,
	} {
		r, err := parseReport([]byte(text))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v (%v), not %q", text, err, r, want)
		}
	}
}

// FuzzParseReport reads whatever stands for a report. What is taken for one can be written in each form, and read again.
func FuzzParseReport(f *testing.F) {
	f.Add([]byte(`{"suite": "` + Version + `", "results": [{"check": "leak/add-del", "outcome": "leak", "level": "must", "seen": ["a\nb"], "notes": [""],
		"known": {"check": "leak/add-del", "reason": "r"}}], "unexpectedPasses": [{}], "plugins": [{}]}`))
	f.Add([]byte(`{"suite": "` + Version + `", "results": [{"check": "", "outcome": "flaky", "level": "own", "tookNs": -1}]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		r, err := parseReport(raw)
		if err != nil {
			return
		}
		for _, format := range Formats() {
			var out bytes.Buffer
			must(t, r.Write(&out, format, true))
			if format == "json" && !json.Valid(out.Bytes()) {
				t.Errorf("no JSON: %s", out.Bytes())
			}
			if format == "json" {
				if _, err := parseReport(out.Bytes()); err != nil {
					t.Errorf("what was written cannot be read: %v", err)
				}
			}
		}
	})
}
