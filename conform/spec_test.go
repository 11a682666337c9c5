package conform

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
)

// SPEC.md is what WriteMatrix makes of the obligations.
func TestMatrix(t *testing.T) {
	const file = "SPEC.md"
	var want strings.Builder
	must(t, WriteMatrix(&want))
	if *update {
		must(t, os.WriteFile(file, []byte(want.String()), 0o644))
	}
	raw, err := os.ReadFile(file)
	must(t, err)
	if string(raw) != want.String() {
		t.Errorf("%s is not the matrix of Obligations(); run: go -C conform test . -run TestMatrix -update", file)
	}
}

// Each obligation is complete. One that binds plugins has a check, or a reason why it has none; one that binds others has neither.
func TestObligations(t *testing.T) {
	seen := map[string]bool{}
	for _, o := range Obligations() {
		whole := o.ID != "" && o.Says != "" && (o.Section != "" || o.Before != "") && (o.Level == Must || o.Level == Should)
		if seen[o.ID] || !whole || o.Early == o.Level {
			t.Errorf("%s is there twice, or lacks something: %+v", o.ID, o)
		}
		seen[o.ID] = true
		if o.Early != "" && o.Before == "" || o.Since != "" && (o.Before != "" || o.Since != "1.1.0") {
			t.Errorf("%s: 0.4.0 lacks it, but it has a level there; or it is later than a version that has it", o.ID)
		}
		switch judged, why := len(o.Checks) > 0, o.Unjudged != ""; {
		case o.Binds == OfPlugin && judged == why:
			t.Errorf("%s binds plugins: it needs either a check or a reason why there is none", o.ID)
		case o.Binds != OfPlugin && (judged || why):
			t.Errorf("%s does not bind plugins, but names checks, or a reason why there is none", o.ID)
		}
	}
}

// Each check rests on obligations that are listed, and is not stricter than these in any version in which it is judged.
func TestChecksRestOnObligations(t *testing.T) {
	checks := map[string]bool{}
	for _, c := range Checks() {
		checks[c.Name] = true
		for _, v := range judged {
			if older(v, c.Since) || c.in(v) == Own {
				continue
			}
			if !slices.ContainsFunc(c.Obligations, func(o Obligation) bool { return o.In(v) != "" && o.In(v).Within(c.in(v)) }) {
				t.Errorf("%s is of level %s in %s, but no obligation (conform/spec_*.go) that names it binds so far there", c.Name, c.in(v), v)
			}
		}
	}
	for _, o := range Obligations() {
		for _, name := range o.Checks {
			if !checks[name] {
				t.Errorf("%s names %s, and there is no such check", o.ID, name)
			}
		}
	}
}

// An obligation has the level of each version, and none in versions that do not have it.
func TestObligationIn(t *testing.T) {
	for want, o := range map[string]Obligation{
		"must must must":   {Section: "2", Before: "Result", Level: Must},
		"should must must": {Section: "2", Before: "Result", Level: Must, Early: Should},
		" should should":   {Section: "2", Level: Should},
		"  must":           {Section: "2", Since: "1.1.0", Level: Must},
		"must  ":           {Before: "Result", Level: Must},
	} {
		var in []string
		for _, v := range judged {
			in = append(in, string(o.In(v)))
		}
		if got := strings.Join(in, " "); got != want {
			t.Errorf("%+v: %q, not %q", o, got, want)
		}
	}
}

// The JSON of a check has the sections on which it rests.
func TestSectionsInJSON(t *testing.T) {
	all := Checks()
	at := slices.IndexFunc(all, func(c Check) bool { return c.Name == "gc/delegated" })
	raw, err := json.Marshal(all[at])
	must(t, err)
	for _, want := range []string{`"obligations":[{`, `"id":"gc-delegated"`, `"section":"2, GC"`, `"level":"must"`} {
		if !strings.Contains(string(raw), want) {
			t.Errorf("it lacks %s: %s", want, raw)
		}
	}
}
