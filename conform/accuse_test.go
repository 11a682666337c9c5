package conform

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// The suite accuses nobody wrongly.

// A plugin that makes no interface, such as loopback, is not blamed for an interface that is not there, nor for a name that it does not use.
func TestLinkless(t *testing.T) {
	t.Parallel()
	passed := 0
	for _, r := range judgedBy(t, planted("linkless"), "1.1.0", checksFor(nil)).Results {
		if r.Outcome.Bad() {
			t.Errorf("%s: %s: %s", r.Check, r.Outcome, strings.Join(r.Seen, "\n"))
		}
		if r.Outcome == Pass {
			passed++
		}
		if said := strings.Join(r.Notes, "\n"); strings.Contains(said, "has already succeeded") {
			t.Errorf("%s notes what such a plugin never refuses: %s", r.Check, said)
		}
	}
	if passed < 30 {
		t.Errorf("only %d checks pass", passed)
	}
}

// What the specification leaves to plugins is no fault: to set something up in an ADD that then fails, to list a socket among the interfaces, and to
// answer calls that come at once that the runtime should try again later.
func TestAllowed(t *testing.T) {
	if testing.Short() {
		t.Skip("takes minutes")
	}
	for allowed, run := range map[string]string{
		"table-at-failure": checksFor(nil), "socket-listed": checksFor(nil), "busy-at-once": "^(basic|parallel)/|^leak/(add-del|churn)$",
	} {
		t.Run(allowed, func(t *testing.T) {
			t.Parallel()
			noted := ""
			for _, r := range judgedBy(t, planted(allowed), "1.1.0", run).Results {
				if r.Outcome.Bad() {
					t.Errorf("%s: %s: %s", r.Check, r.Outcome, strings.Join(r.Seen, "\n"))
				}
				noted += strings.Join(r.Notes, "\n")
			}
			if allowed == "busy-at-once" && !strings.Contains(noted, "to try again later; the suite did that") {
				t.Errorf("no check met a busy plugin: %s", noted)
			}
		})
	}
}

// CHECK and GC are not called, nor judged, where the list forbids them.
func TestForbidden(t *testing.T) {
	t.Parallel()
	second := strings.Replace(planted("gc-removes-everything"), "{", `{"chained": true, `, 1)
	keys := `], "disableCheck": true, "disableGC": true, "others": [` // in the list, behind its plugins
	judged := 0
	for _, r := range judgedBy(t, planted("check-always-fails")+", "+second+keys, "1.1.0", checksFor(nil)).Results {
		forbidden := strings.HasPrefix(r.Check, "gc/") || strings.HasPrefix(r.Check, "check/") || r.Check == "chain/check"
		if said := strings.Join(r.Seen, "\n"); r.Outcome.Bad() || forbidden && r.Outcome != Unsupported {
			t.Errorf("%s: %s: %s", r.Check, r.Outcome, said)
		} else if strings.Contains(said, "runtimes must not call") {
			judged++
		}
	}
	if judged < 15 {
		t.Errorf("only %d checks are refused for the list's keys", judged)
	}
}

// A plugin may refuse a name of 15 bytes: the specification only wants an error then.
func TestShortNames(t *testing.T) {
	t.Parallel()
	for _, r := range judgedBy(t, planted("short-names"), "1.1.0", "^limits/(bad-)?ifname$").Results {
		if bad := r.Check == "limits/ifname"; r.Outcome.Bad() != bad || bad && r.Level != Own {
			t.Errorf("%s: %s, %s: %s", r.Check, r.Level, r.Outcome, strings.Join(r.Seen, "\n"))
		}
	}
}

// A plugin may refuse a key that it does not take, by the code for that.
func TestRefusedDNS(t *testing.T) {
	t.Parallel()
	for fault, want := range map[string]Outcome{"dns-refused": Unsupported, "dns-fails": Fail} {
		for _, r := range judgedBy(t, planted(fault), "1.1.0", "^keys/dns$").Results {
			if r.Outcome != want {
				t.Errorf("%s: %s: %s", fault, r.Outcome, strings.Join(r.Seen, "\n"))
			}
		}
	}
}

// A plugin that needs what this kernel lacks is not blamed: nothing but its versions can be judged.
func TestKernelLacks(t *testing.T) {
	t.Parallel()
	for _, r := range judgedBy(t, planted("lacks"), "1.1.0", "^(basic|version|add|del|leak|parallel)/").Results {
		version := strings.HasPrefix(r.Check, "version/")
		if said := strings.Join(r.Seen, "\n"); version != (r.Outcome == Pass) || !version && (r.Outcome != Unsupported || !strings.Contains(said, lacks)) {
			t.Errorf("%s: %s: %s", r.Check, r.Outcome, said)
		}
	}
}

// A plugin that writes where the suite lets it not is not blamed, if it says so; if not, a note says what it may be.
func TestDenied(t *testing.T) {
	t.Parallel()
	for fault, want := range map[string]Outcome{"needs-opt": Unsupported, "needs-opt-logged": Unsupported, "needs-opt-silent": Fail} {
		r := judgedBy(t, planted(fault), "1.1.0", "^basic/attach$").Results[0]
		said := strings.Join(append(r.Seen, r.Notes...), "\n")
		if r.Outcome != want || !strings.Contains(said, "/opt/planted") || !strings.Contains(said, "--state-dir adds others. Of /proc/sys") {
			t.Errorf("%s: %s: %s", fault, r.Outcome, said)
		}
	}
}

// A program that a plugin could not run is not what it wanted to write.
func TestReadOnlyIn(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	must(t, os.WriteFile(program, nil, 0o755))
	must(t, unix.Mount(dir, dir, "", unix.MS_BIND, ""))
	t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	must(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
	c := &T{suite: &suite{Options: Options{BinDir: filepath.Join(dir, "bin")}}}
	got := c.readOnlyIn(fmt.Sprintf("running [%s -A]: cannot write %s/own/f: no; looked in %s/bin/x, /run/y", program, dir, dir))
	if want := []string{dir + "/own/f"}; !slices.Equal(got, want) {
		t.Errorf("%q, not %q", got, want)
	}
}

// CHECK of a plugin fails because of what the plugin behind it says in its result: that one is named.
func TestLyingRoute(t *testing.T) {
	t.Parallel()
	second := strings.Replace(planted("route-lied"), "{", `{"chained": true, `, 1)
	var said string
	for _, r := range judgedBy(t, planted("")+", "+second, "1.1.0", "^(basic|check)/|^add/result").Results {
		if strings.HasPrefix(r.Check, "check/well") {
			said += strings.Join(r.Seen, "\n")
		}
	}
	if !strings.Contains(said, "what planted-route-lied makes of the result is not so") {
		t.Errorf("it says %q", said)
	}
}

// A chain in which CHECK finds no loss names the plugin that made what is lost, and not the last plugin.
func TestNamesTheMaker(t *testing.T) {
	t.Parallel()
	second := strings.Replace(planted(""), "{", `{"chained": true, `, 1)
	for _, r := range judgedBy(t, planted("check-ignores-link")+", "+second, "1.1.0", "^(basic|check)/|^add/").Results {
		if said := strings.Join(r.Seen, "\n"); r.Check == "check/link-gone" && !strings.Contains(said, "although planted-check-ignores-link made") {
			t.Errorf("it says %q", said)
		}
	}
}

// Pods that a list gives one address have it. An address that a plugin gives twice by itself is a fault.
func TestAddressesOfTheList(t *testing.T) {
	l, err := parseList([]byte(`{"name": "n", "cniVersion": "1.0.0", "plugins": [{"type": "a", "ipam": {"type": "static", "addresses": [{"address": "10.1.0.7/24"}]}}]}`))
	must(t, err)
	for addr, want := range map[string]Outcome{"10.1.0.7/24": "", "10.1.0.8/24": Fail} {
		c := &T{suite: &suite{list: l}}
		var pods []*Attachment
		for i := range 2 {
			raw := fmt.Sprintf(`{"interfaces":[{"name":"net0","sandbox":"/p"}],"ips":[{"address":%q,"interface":0}]}`, addr)
			pods = append(pods, &Attachment{ID: fmt.Sprint(i), Ifname: "net0", Result: json.RawMessage(raw)})
		}
		if c.wantDistinct(pods); c.outcome != want {
			t.Errorf("%s: %s: %q", addr, c.outcome, c.seen)
		}
	}
}

// A check that is bad at some times only is flaky: neither a leak, nor hidden.
func TestRejudged(t *testing.T) {
	for _, c := range []struct {
		times  int
		first  Outcome
		then   []Outcome
		want   Outcome
		judged int
		note   string
	}{
		{1, Leak, nil, Leak, 0, ""},
		{3, Pass, nil, Pass, 0, ""},
		{3, Leak, []Outcome{Leak, Fail}, Leak, 2, ""},
		{3, Leak, []Outcome{Leak, Pass}, Flaky, 2, "leak at 2 of 3 times"},
		{4, Fail, []Outcome{Pass, Unsupported, Pass}, Flaky, 3, "fail at 1 of 4 times"},
	} {
		judged := 0
		got, notes := rejudged(c.first, nil, c.times, func() Outcome { judged++; return c.then[judged-1] })
		if got != c.want || judged != c.judged || strings.Join(notes, "") != c.note {
			t.Errorf("%+v: %s after %d more times, with %q", c, got, judged, notes)
		}
	}
	r := &Report{Results: []Result{{Check: "a/b", Outcome: Flaky, Seen: []string{"why"}, Repeat: "how"}}}
	var table strings.Builder
	must(t, r.Write(&table, "table", false))
	if r.Clean() || !strings.Contains(table.String(), "why") || !strings.Contains(table.String(), "1 flaky") {
		t.Errorf("the table is\n%s", &table)
	}
}

// In a version for which there is a list of its own, that list counts.
func TestOtherLists(t *testing.T) {
	s := &suite{list: &List{Version: "1.0.0"}, others: map[string]*List{"0.4.0": {Version: "0.4.0"}}}
	for version, want := range map[string]string{"1.0.0": "1.0.0", "0.4.0": "0.4.0", "1.1.0": "1.0.0"} {
		if got := s.listOf(version).Version; got != want {
			t.Errorf("in %s the list of %s counts, not that of %s", version, got, want)
		}
	}
	dir := t.TempDir()
	a := written(t, dir, `{"name":"n","cniVersion":"1.0.0","plugins":[{"type":"a"}]}`)
	for want, others := range map[string][]string{
		"another list has cniVersion 1.0.0": {`{"name":"n","cniVersion":"1.0.0","plugins":[{"type":"a"}]}`},
		"another list has cniVersion 0.4.0": {`{"name":"n","cniVersion":"0.4.0","plugins":[{"type":"a"}]}`, `{"name":"n","cniVersion":"0.4.0","plugins":[{"type":"a"}]}`},
		"expected the same plugins":         {`{"name":"n","cniVersion":"0.4.0","plugins":[{"type":"b"}]}`},
	} {
		o := Options{Conf: a, BinDir: dir}
		for _, text := range others {
			o.Others = append(o.Others, written(t, dir, text))
		}
		if _, err := newSuite(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", others, err)
		}
	}
}

// written writes a file of its own in a folder, and returns its path.
func written(t *testing.T, dir, text string) string {
	t.Helper()
	f, err := os.CreateTemp(dir, "*.conflist")
	must(t, err)
	defer f.Close()
	_, err = f.WriteString(text)
	must(t, err)
	return f.Name()
}
