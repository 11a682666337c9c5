// Package metrics tests that what people are told of the agent's metrics is true. Names and
// units follow Prometheus's conventions. The real agent exposes each name and label in the
// lists of docs/METRICS.md, and in the alerts and the dashboard in deploy.
package metrics

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

func TestMain(m *testing.M) { programs.Main(m) }

var must = nettest.Must

// metric is a family of series that an agent exposes.
type metric struct {
	name, kind, help string
	labels           []string                   // sorted, without le
	values           map[string]map[string]bool // of each label
}

// exposition is what an agent exposes: its text, and its metrics by name.
type exposition struct {
	text    string
	order   []string
	metrics map[string]*metric
}

// exposed starts the real agent, has it attach and detach a pod and look for findings, and
// returns what it then exposes.
func exposed(t *testing.T) exposition {
	t.Helper()
	nettest.Need(t)
	bin := programs.Own(t)
	n := programs.RunNode(t, bin, config)
	netns := nettest.Pod(t).Ref().Path
	for _, verb := range []string{"ADD", "DEL"} {
		_, err := n.Exec(verb, "c1", netns)
		must(t, err)
	}
	if _, err := n.API.Audit(t.Context()); err != nil {
		t.Fatal(err)
	}
	text, err := n.API.Metrics(t.Context())
	must(t, err)
	return read(t, string(text))
}

const config = "pools:\n- {name: default, cidrs: [10.88.0.0/24, 'fd00:88::/64']}\n"

// A series as the text format has it, and one label of it.
var (
	seriesLine = regexp.MustCompile(`^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? \S+$`)
	labelPair  = regexp.MustCompile(`([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"`)
)

// read reads metrics in Prometheus's text format.
func read(t *testing.T, text string) exposition {
	t.Helper()
	e := exposition{text: text, metrics: map[string]*metric{}}
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if rest, ok := strings.CutPrefix(line, "# HELP "); ok {
			name, help, _ := strings.Cut(rest, " ")
			e.order = append(e.order, name)
			e.metrics[name] = &metric{name: name, help: help, values: map[string]map[string]bool{}}
			continue
		}
		if rest, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, kind, _ := strings.Cut(rest, " ")
			e.metrics[name].kind = kind
			continue
		}
		found := seriesLine.FindStringSubmatch(line)
		if found == nil {
			t.Fatalf("no series: %q", line)
		}
		m := e.find(found[1])
		if m == nil {
			t.Fatalf("a series of no metric: %q", line)
		}
		for _, pair := range labelPair.FindAllStringSubmatch(found[2], -1) {
			label, value := pair[1], pair[2]
			if label == "le" || label == "quantile" {
				continue
			}
			if m.values[label] == nil {
				m.values[label] = map[string]bool{}
				m.labels = append(m.labels, label)
				slices.Sort(m.labels)
			}
			m.values[label][value] = true
		}
	}
	return e
}

// find returns the metric that a series of that name belongs to, or nil.
func (e exposition) find(series string) *metric {
	if m := e.metrics[series]; m != nil {
		return m
	}
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		name, cut := strings.CutSuffix(series, suffix)
		if m := e.metrics[name]; cut && m != nil && (m.kind == "histogram" || m.kind == "summary" && suffix != "_bucket") {
			return m
		}
	}
	return nil
}
