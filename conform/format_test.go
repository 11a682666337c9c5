package conform

import (
	"encoding/json"
	"encoding/xml"
	"reflect"
	"strings"
	"testing"
	"time"
)

// Checks that were not judged for the same reason have one line in each group.
func TestTableNotJudged(t *testing.T) {
	needs := func(check, why string) Result {
		return Result{Check: check, Outcome: Unsupported, Seen: []string{"not judged: it needs " + why}, Needed: why}
	}
	r := &Report{Results: []Result{
		{Check: "basic/attach", Outcome: Fail}, needs("add/a", "basic/attach"), {Check: "add/b", Outcome: Unsupported, Seen: []string{"nobody to ask"}},
		needs("add/c-and-more", "basic/attach"), needs("add/d", "version/answer"), needs("del/a", "basic/attach"),
	}}
	var out strings.Builder
	must(t, r.Write(&out, "table", false))
	want := `
add
  unsupported  2 checks        0s  not judged: it needs basic/attach
  unsupported  b               0s  nobody to ask
  unsupported  d               0s  not judged: it needs version/answer

del
  unsupported  a               0s  not judged: it needs basic/attach
`
	if !strings.Contains(out.String(), want) {
		t.Errorf("the table is\n%s, and lacks\n%s", &out, want)
	}
}

// sample has one result of each outcome, and text of plugins that is hostile to
// terminals and to XML.
func sample() *Report {
	return &Report{
		Conf: "/etc/net.conflist", Network: "net", Version: "1.0.0", Kernel: "6.1", Took: 1234 * time.Millisecond,
		When:    time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC),
		Plugins: []PluginInfo{{"bridge", []string{"0.4.0", "1.0.0"}}, {"mute", nil}},
		Results: []Result{
			{Check: "add/result@1.0.0", Spec: "section 5", Says: "it says all", Outcome: Pass, Took: 20 * time.Millisecond, Notes: []string{"slow"}},
			{Check: "leak/add-del", Level: Should, Spec: "section 2", Says: "DEL undoes", Outcome: Leak, Seen: []string{"left:\nlink a\x1b[2Jb <&>"}, Repeat: "berth conform --run 'x'"},
			{Check: "add/error", Level: Must, Spec: "section 5", Says: "errors have a code", Outcome: Fail, Seen: []string{"none", "again"}},
			{Check: "gc/all", Outcome: Unsupported, Seen: []string{"no GC"}},
			{Check: "gc/more", Outcome: Unsupported, Seen: []string{"not judged: as above"}, Needed: "leak/add-del"},
		},
	}
}

func TestTable(t *testing.T) {
	var out strings.Builder
	must(t, sample().Write(&out, "table", false))
	want := `/etc/net.conflist: network net, cniVersion 1.0.0, kernel 6.1, 2026-11-21 12:00:00 UTC
  bridge speaks 0.4.0, 1.0.0
  mute speaks no version

add
  pass         result@1.0.0    20ms
      note    slow
  fail         error             0s
      says    errors have a code (section 5)
      level   must, the specification leaves no choice
      seen    none
              again

leak
  leak         add-del           0s
      says    DEL undoes (section 2)
      level   should, the specification recommends it
      seen    left:
              link a[2Jb <&>
      repeat  berth conform --run 'x'

gc
  unsupported  all               0s  no GC
  unsupported  more              0s  not judged: as above

5 checks: 1 fail, 1 leak, 1 pass, 2 unsupported (1 of them not judged); took 1.2s
`
	if out.String() != want {
		t.Errorf("the table is\n%s, not\n%s", out.String(), want)
	}
	var coloured strings.Builder
	must(t, sample().Write(&coloured, "table", true))
	if !strings.Contains(coloured.String(), "\x1b[31;1mfail       \x1b[0m  error") {
		t.Errorf("without colours, or without order: %q", coloured.String())
	}
}

func TestJSON(t *testing.T) {
	var out strings.Builder
	must(t, sample().Write(&out, "json", true))
	var again Report
	must(t, json.Unmarshal([]byte(out.String()), &again))
	if !reflect.DeepEqual(&again, sample()) {
		t.Errorf("read again it is\n%+v, not\n%+v", &again, sample())
	}
}

func TestJUnit(t *testing.T) {
	var out strings.Builder
	must(t, sample().Write(&out, "junit", true))
	var all junitSuites
	if err := xml.Unmarshal([]byte(out.String()), &all); err != nil {
		t.Fatalf("%v in\n%s", err, out.String())
	}
	if all.Tests != 5 || all.Failures != 2 || all.Skipped != 2 || all.Suite.Time != "1.234" {
		t.Errorf("counted wrongly: %+v", all)
	}
	c := all.Suite.Cases
	if len(c) != 5 || c[0].Failure != nil || c[0].Skipped != nil || *c[3].Skipped != (junitWhy{Message: "no GC"}) ||
		*c[4].Skipped != (junitWhy{Message: "not judged: as above", Type: "not judged"}) {
		t.Fatalf("cases are %+v", c)
	}
	leak := c[1].Failure
	if leak.Type != "leak" || leak.Message != "left:" || !strings.Contains(leak.Text, "\ufffd[2Jb <&>") ||
		!strings.Contains(leak.Text, "repeat: berth conform") {
		t.Errorf("the leak is %+v", leak)
	}
}

// A known failure is skipped in JUnit, and one that passes is a failure. The table says both.
func TestKnownInFormats(t *testing.T) {
	r := sample()
	r.Expect([]Known{{Check: "leak/add-del", Reason: "it is so", Issue: "https://example.com/1"}, {Check: "add/result", Reason: "was bad"}})
	var junit, table strings.Builder
	must(t, r.Write(&junit, "junit", false))
	must(t, r.Write(&table, "table", false))
	var all junitSuites
	must(t, xml.Unmarshal([]byte(junit.String()), &all))
	c := all.Suite.Cases
	if all.Tests != 6 || all.Failures != 2 || all.Skipped != 3 || c[1].Failure != nil || c[1].Skipped.Type != "known" || c[5].Failure.Type != "unexpected pass" {
		t.Errorf("JUnit is\n%s", &junit)
	}
	for _, want := range []string{"known   it is so (https://example.com/1)", "although they are known to be bad", "add/result: was bad",
		"5 checks: 1 fail, 1 leak (1 of them known), 1 pass, 2 unsupported (1 of them not judged); "} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, &table)
		}
	}
}

// The table of a run that was stopped says so: its counts may look good.
func TestInterruptedTable(t *testing.T) {
	const says = "\nInterrupted: not all checks have run.\n\n5 checks: "
	for _, stopped := range []bool{false, true} {
		r := sample()
		r.Interrupted = stopped
		var table strings.Builder
		must(t, r.Write(&table, "table", false))
		if strings.Contains(table.String(), says) != stopped {
			t.Errorf("interrupted: %v. The table is\n%s", stopped, &table)
		}
	}
}

func TestFormats(t *testing.T) {
	for _, f := range Formats() {
		if !HasFormat(f) || sample().Write(&strings.Builder{}, f, false) != nil {
			t.Errorf("no %s", f)
		}
	}
	if HasFormat("yaml") || sample().Write(&strings.Builder{}, "yaml", false) == nil {
		t.Error("yaml passes")
	}
}
