package conform

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLevels(t *testing.T) {
	for _, c := range Checks() {
		if c.Level == "" || c.Early == c.Level {
			t.Errorf("%s: level %q, before 1.0.0 %q", c.Name, c.Level, c.Early)
		}
		if own := strings.HasPrefix(c.Spec, "the suite's own"); own && c.Level != Own {
			t.Errorf("%s rests on no section, and is of level %s", c.Name, c.Level)
		}
	}
	c := Check{Level: Must, Early: Should}
	if c.in("0.4.0") != Should || c.in("1.0.0") != Must || (Check{Level: Own}).in("0.4.0") != Own {
		t.Error("a check has another level in a version")
	}
	if !Must.Within(Should) || !Own.Within(Own) || Own.Within(Should) || Should.Within(Must) {
		t.Error("the levels are in another order")
	}
	if _, err := ParseLevel("may"); err == nil || !strings.Contains(err.Error(), "must should own") {
		t.Errorf("level may: %v", err)
	}
}

// A result is of the level of the strictest of its findings.
func TestLevelOfFindings(t *testing.T) {
	c := &T{level: Should}
	c.as(Own, func() { c.Failf("a") })
	if c.worst != Own {
		t.Errorf("after a finding of the suite's own: %s", c.worst)
	}
	c.as(Must, func() { c.Leakf("b") })
	c.Failf("c")
	if c.worst != Must || c.level != Should || c.outcome != Fail {
		t.Errorf("after one of each: %s, %s; level %s", c.worst, c.outcome, c.level)
	}
}

// The levels of planted faults: what is judged by a check may be of another level than the check.
func TestLevelsOfFaults(t *testing.T) {
	t.Parallel()
	for fault, want := range map[string]Level{
		"existing-interface-taken": Must, "error-without-code": Should, "error-exits-zero": Must, "link-left": Should, "residue-after-failed-add": Own,
	} {
		var got []Level
		for _, r := range judgedBy(t, planted(fault), "1.1.0", "^(basic|leak/add-del|add)").Results {
			if r.Outcome.Bad() && !strings.HasSuffix(r.Check, "@0.4.0") {
				got = append(got, r.Level)
			}
		}
		if len(got) == 0 || got[0] != want {
			t.Errorf("%s is of level %s, not %s", fault, got, want)
		}
	}
}

func TestExpect(t *testing.T) {
	r := &Report{Results: []Result{
		{Check: "leak/kill-add", Level: Should, Outcome: Leak}, {Check: "leak/kill-del", Level: Should, Outcome: Flaky}, {Check: "gc/unlisted", Outcome: Pass},
		{Check: "check/well@0.4.0", Level: Must, Outcome: Fail}, {Check: "check/well@1.0.0", Level: Must, Outcome: Pass}, {Check: "rates/kept", Outcome: Unsupported},
	}}
	for _, c := range []struct {
		known      []string
		at         Level
		failed     bool
		unexpected int
	}{
		{nil, Own, true, 0},
		{[]string{"leak/kill-add", "leak/kill-del", "check/well"}, Own, false, 0},
		{[]string{"leak/kill-add", "leak/kill-del", "check/well@0.4.0", "rates/kept"}, Own, false, 0},
		{[]string{"leak/kill-add", "leak/kill-del", "check/well@1.0.0"}, Own, true, 1},
		{[]string{"leak/kill-add", "leak/kill-del", "check/well", "gc/unlisted"}, Must, true, 1},
		{[]string{"check/well"}, Must, false, 0},
		{[]string{"check/well"}, Should, true, 0},
	} {
		for i := range r.Results {
			r.Results[i].Known = nil
		}
		var all []Known
		for _, name := range c.known {
			all = append(all, Known{Check: name, Reason: "why"})
		}
		if r.Expect(all); r.Failed(c.at) != c.failed || len(r.Unexpected) != c.unexpected {
			t.Errorf("%+v: failed %t, unexpected %v", c, r.Failed(c.at), r.Unexpected)
		}
	}
	if none := (&Report{Results: []Result{{Outcome: Unsupported}}}); none.Judged() || !r.Judged() {
		t.Error("what is unsupported counts as judged")
	}
	if lame := (&Report{Results: []Result{{Check: "basic/attach", Outcome: Unsupported}, {Check: "version/answer", Outcome: Pass}}}); lame.Judged() {
		t.Error("plugins count as judged that attach nothing here")
	}
}

func TestReadKnown(t *testing.T) {
	path := filepath.Join(t.TempDir(), "known.json")
	for text, want := range map[string]string{
		`[{"check": "leak/kill-add", "reason": "r", "issue": "https://example.com/1"}, {"check": "check/well@0.4.0", "reason": "r"}]`: "",
		`{}`:                           "no array of known failures",
		`[{"check": "leak/nothing"}]`:  `there is no check "leak/nothing"`,
		`[{"check": "leak/kill-add"}]`: "has no reason",
		`[{"check": "leak/churn@1.0.0", "reason": "r"}]`:                                   "not judged in that version alone",
		`[{"check": "check/well@9.9.9", "reason": "r"}]`:                                   "not judged in that version alone",
		`[{"check": "leak/churn", "reason": "r", "link": "x"}]`:                            `unknown field "link"`,
		`[{"check": "leak/churn", "reason": "r"}, {"check": "leak/churn", "reason": "s"}]`: "twice",
	} {
		must(t, os.WriteFile(path, []byte(text), 0o600))
		all, err := ReadKnown(path)
		if want == "" && (err != nil || len(all) != 2 || all[0].Issue == "") || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, %v", text, all, err)
		}
	}
}
