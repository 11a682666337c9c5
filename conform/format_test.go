package conform

import (
	"encoding/json"
	"encoding/xml"
	"reflect"
	"strings"
	"testing"
	"time"
)

// sample has one result of each outcome, and text of plugins that is hostile to
// terminals and to XML.
func sample() *Report {
	return &Report{
		Conf: "/etc/net.conflist", Network: "net", Version: "1.0.0", Kernel: "6.1", Took: 1234 * time.Millisecond,
		When:    time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC),
		Plugins: []PluginInfo{{"bridge", []string{"0.4.0", "1.0.0"}}, {"mute", nil}},
		Results: []Result{
			{Check: "add/result@1.0.0", Spec: "section 5", Says: "it says all", Outcome: Pass, Took: 20 * time.Millisecond, Notes: []string{"slow"}},
			{Check: "leak/add-del", Spec: "section 2", Says: "DEL undoes", Outcome: Leak, Seen: []string{"left:\nlink a\x1b[2Jb <&>"}, Repeat: "berth conform --run 'x'"},
			{Check: "add/error", Spec: "section 5", Says: "errors have a code", Outcome: Fail, Seen: []string{"none", "again"}},
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
      seen    none
              again

leak
  leak         add-del           0s
      says    DEL undoes (section 2)
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
