package metrics

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"go.yaml.in/yaml/v3"

	"github.com/berth-net/berth/test/programs"
)

var update = flag.Bool("update", false, "write the lists into docs/METRICS.md")

// said is what people are told of a program's metrics.
type said struct {
	rules, tests, dashboard string // files: alerts, the alerts' tests, and a dashboard
	metrics, alerts         string // headings of the lists in docs/METRICS.md
}

var (
	ofAgent = said{
		"deploy/berth.rules.yaml", "testdata/alerts.yaml", "deploy/berth.dashboard.json",
		"| metric | type | labels | what it says |\n|---|---|---|---|\n", "| alert | severity | what it means | what to do |\n|---|---|---|---|\n",
	}
	ofOperator = said{
		"deploy/berth-operator.rules.yaml", "testdata/operator-alerts.yaml", "deploy/berth-operator.dashboard.json",
		"| operator's metric | type | labels | what it says |\n|---|---|---|---|\n", "| operator's alert | severity | what it means | what to do |\n|---|---|---|---|\n",
	}
)

// The agent's metrics are named and described as Prometheus's conventions ask
// (`promtool check metrics`), and all that anybody is told of them is true.
func TestMetrics(t *testing.T) {
	e := exposed(t)
	t.Run("promtool", func(t *testing.T) { promtool(t, e.text, "check", "metrics") })
	check(t, e, ofAgent)
}

// All that anybody is told of the operator's metrics is true.
func TestOperatorMetrics(t *testing.T) { check(t, operatorExposed(t), ofOperator) }

// check holds what a program exposes to what is said of it, and its names and descriptions to the conventions.
func check(t *testing.T, e exposition, of said) {
	problems, err := promlint.New(strings.NewReader(e.text)).Lint()
	must(t, err)
	for _, p := range problems {
		if !strings.HasPrefix(p.Metric, "berth_") {
			continue // of a library
		}
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	for _, name := range e.order {
		if m := e.metrics[name]; strings.HasPrefix(name, "berth_") && !strings.HasSuffix(m.help, ".") {
			t.Errorf("%s: %q is no sentence", name, m.help)
		}
	}
	t.Run("docs", func(t *testing.T) { checkDocs(t, e, of) })
	t.Run("alerts", func(t *testing.T) { checkAlerts(t, e, of) })
	t.Run("dashboard", func(t *testing.T) { checkDashboard(t, e, of.dashboard) })
}

// closed are labels whose values docs/METRICS.md lists.
var closed = []string{"lane", "part", "result", "sort", "state", "type"}

// checkDocs compares the lists in docs/METRICS.md with the program and with the alerts.
func checkDocs(t *testing.T, e exposition, of said) {
	var series, alerts strings.Builder
	for _, name := range e.order {
		m := e.metrics[name]
		if !strings.HasPrefix(name, "berth_") {
			continue
		}
		labels := make([]string, len(m.labels))
		for i, l := range m.labels {
			labels[i] = "`" + l + "`"
			if slices.Contains(closed, l) {
				labels[i] += ": " + strings.Join(slices.Sorted(maps.Keys(m.values[l])), ", ")
			}
		}
		fmt.Fprintf(&series, "| `%s` | %s | %s | %s |\n", name, m.kind, strings.Join(labels, "; "), m.help)
	}
	for _, a := range readAlerts(t, of.rules) {
		does := strings.ReplaceAll(a.Annotations["runbook"], "{{ $labels.pool }}", "POOL")
		fmt.Fprintf(&alerts, "| `%s` | %s | %s | %s |\n", a.Alert, a.Labels["severity"], a.Annotations["description"], strings.ReplaceAll(does, "|", `\|`))
	}
	file := filepath.Join(programs.Tree(t), "docs/METRICS.md")
	raw, err := os.ReadFile(file)
	must(t, err)
	text := string(raw)
	for heading, rows := range map[string]string{
		of.metrics: series.String(),
		of.alerts:  strings.ReplaceAll(alerts.String(), "{{ $labels.kind }} {{ $value | printf \"%.0f\" }}", "KIND many"),
	} {
		before, rest, found := strings.Cut(text, heading)
		if !found {
			t.Fatalf("%s has no table %q", file, heading)
		}
		for strings.HasPrefix(rest, "|") {
			_, rest, _ = strings.Cut(rest, "\n")
		}
		text = before + heading + rows + rest
	}
	switch {
	case text == string(raw):
	case *update:
		must(t, os.WriteFile(file, []byte(text), 0o644))
	default:
		t.Errorf("%s does not list what there is; run: go test ./test/metrics -update", file)
	}
}

// alert is one rule of a file of alerts.
type alert struct {
	Alert, Expr, For    string
	Labels, Annotations map[string]string
}

func readAlerts(t *testing.T, rulesFile string) []alert {
	var rules struct {
		Groups []struct{ Rules []alert }
	}
	raw, err := os.ReadFile(filepath.Join(programs.Tree(t), rulesFile))
	must(t, err, yaml.Unmarshal(raw, &rules))
	if len(rules.Groups) != 1 || len(rules.Groups[0].Rules) == 0 {
		t.Fatal("there is not one group with alerts")
	}
	return rules.Groups[0].Rules
}

// berth is a command of Berth's in a runbook.
var berth = regexp.MustCompile("`(berthd?) ([a-z-]+)[^`]*`")

// checkAlerts checks the alerts, and the series of their tests, against the program's.
func checkAlerts(t *testing.T, e exposition, of said) {
	file, err := os.ReadFile(of.tests)
	must(t, err)
	tests := string(file)
	for _, a := range readAlerts(t, of.rules) {
		for _, w := range e.wrong(a.Expr) {
			t.Errorf("%s: %s", a.Alert, w)
		}
		for _, name := range []string{"summary", "description", "runbook"} {
			if a.Annotations[name] == "" {
				t.Errorf("%s has no %s", a.Alert, name)
			}
		}
		if !slices.Contains([]string{"critical", "warning", "info"}, a.Labels["severity"]) {
			t.Errorf("%s: severity %q", a.Alert, a.Labels["severity"])
		}
		if !strings.Contains(a.Annotations["runbook"], "`") {
			t.Errorf("%s: no command to begin with: %s", a.Alert, a.Annotations["runbook"])
		}
		for _, command := range berth.FindAllStringSubmatch(a.Annotations["runbook"], -1) {
			if out, err := exec.Command(filepath.Join(programs.Own(t), command[1]), command[2], "--help").CombinedOutput(); err != nil {
				t.Errorf("%s: %s: %v\n%s", a.Alert, command[0], err, out)
			}
		}
		if !strings.Contains(tests, `ALERTS{alertname="`+a.Alert+`",alertstate="firing"`) {
			t.Errorf("no test has %s fire", a.Alert)
		}
	}
	var script struct {
		Tests []struct {
			Name  string
			Input []struct{ Series string } `yaml:"input_series"`
		}
	}
	must(t, yaml.Unmarshal(file, &script))
	for _, test := range script.Tests {
		calm := false
		for _, in := range test.Input {
			calm = calm || strings.Contains(in.Series, `instance="a"`)
			for _, w := range e.wrong(in.Series) {
				t.Errorf("%s, %s: %s", of.tests, test.Name, w)
			}
		}
		if !calm {
			t.Errorf("%s, %s: nothing shows when the alert does not fire", of.tests, test.Name)
		}
	}
	promtool(t, "", "check", "rules", filepath.Join(programs.Tree(t), of.rules))
	promtool(t, "", "test", "rules", of.tests)
}

// promtool runs promtool, or says that it is missing.
func promtool(t *testing.T, stdin string, args ...string) {
	t.Helper()
	programs.Need(t, "promtool")
	cmd := exec.Command("promtool", args...)
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// box is where a panel of a dashboard lies.
type box struct{ X, Y, W, H int }

func (b box) overlaps(o box) bool {
	return b.X < o.X+o.W && o.X < b.X+b.W && b.Y < o.Y+o.H && o.Y < b.Y+b.H
}

// checkDashboard checks the dashboard's expressions against the program's series, and that each
// panel shows something at a place of its own.
func checkDashboard(t *testing.T, e exposition, dashboard string) {
	var d struct {
		Templating struct {
			List []struct{ Name, Type, Definition string }
		}
		Panels []struct {
			ID          int
			Type, Title string
			GridPos     box
			Datasource  struct{ UID string }
			Targets     []struct{ Expr string }
		}
	}
	raw, err := os.ReadFile(filepath.Join(programs.Tree(t), dashboard))
	must(t, err, json.Unmarshal(raw, &d))
	var rules bytes.Buffer // for promtool: a dashboard's expressions as rules
	rules.WriteString("groups:\n- name: dashboard\n  rules:\n")
	ids, places := map[int]bool{}, []box{}
	for _, p := range d.Panels {
		if ids[p.ID] || p.Title == "" || p.GridPos.X+p.GridPos.W > 24 || slices.ContainsFunc(places, p.GridPos.overlaps) {
			t.Errorf("panel %d %q lacks a title, or its id or its place is another one's", p.ID, p.Title)
		}
		ids[p.ID], places = true, append(places, p.GridPos)
		if p.Type == "row" {
			continue
		}
		if len(p.Targets) == 0 || p.Datasource.UID != "${datasource}" {
			t.Errorf("%s shows nothing, or of another data source: %q", p.Title, p.Datasource.UID)
		}
		for _, target := range p.Targets {
			for _, w := range e.wrong(target.Expr) {
				t.Errorf("%s: %s", p.Title, w)
			}
			fmt.Fprintf(&rules, "  - {record: dashboard:%d, expr: %q}\n", rules.Len(), strings.ReplaceAll(target.Expr, "$__rate_interval", "5m"))
		}
	}
	for _, v := range d.Templating.List {
		if v.Type != "query" {
			continue
		}
		series, label, _ := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(v.Definition, "label_values("), ")"), ", ")
		for _, w := range e.wrong(fmt.Sprintf("sum by (%s) (%s)", label, series)) {
			t.Errorf("variable %s: %s", v.Name, w)
		}
	}
	file := filepath.Join(t.TempDir(), "rules.yaml")
	must(t, os.WriteFile(file, rules.Bytes(), 0o600))
	promtool(t, "", "check", "rules", file)
}
