package server

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/root"
)

// shelf is a daemon's own collector.
type shelf struct{ *prometheus.Desc }

func (s shelf) Describe(ch chan<- *prometheus.Desc) { ch <- s.Desc }

func (s shelf) Collect(ctx context.Context, ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(s.Desc, prometheus.GaugeValue, 3)
}

func TestMetrics(t *testing.T) {
	d := newToy(t, root.Dir(t.TempDir()), 0)
	d.run(t)
	d.hook = func(_ context.Context, verb string, _ When) error {
		switch verb {
		case "make":
			return errors.New("broken")
		case "look":
			return cni.Errorf(cni.CodeTryAgain, "later", "")
		}
		return nil
	}
	d.metrics.ObserveKind("link", "release", 20*time.Millisecond, 32, nil)
	d.metrics.ObserveKind("link", "release", time.Second, 1, errors.New("busy"))
	d.metrics.ObserveLedger(func() ledger.Stats {
		return ledger.Stats{Commits: 9, Transactions: 3, Batches: [10]uint64{1, 0, 0, 2}, Owners: 4, ReserveOK: true}
	})
	d.waitFor(t, "berth_serving 0")
	if body := d.ask(t.Context(), "GET", api.PathMetrics, "", nil).body; strings.Contains(body, "toy_shelf") {
		t.Errorf("before Open the daemon's own figures are there: %s", body)
	}
	d.Open()
	wantCode(t, d.makeOne(t.Context()), cni.CodeInternal, "broken")
	wantCode(t, d.look(t.Context()), cni.CodeTryAgain, "later")
	if err := d.breakOne(t.Context()); err != nil {
		t.Error(err)
	}
	a := d.ask(t.Context(), "GET", api.PathMetrics, "", nil)
	if got := a.header.Get("Content-Type"); !strings.HasPrefix(got, "text/plain") {
		t.Errorf("content type %q", got)
	}
	for _, line := range []string{
		`berth_serving 1`,
		`berth_requests_total{result="failed",verb="make"} 1`,
		`berth_requests_total{result="again",verb="look"} 1`,
		`berth_requests_total{result="ok",verb="break"} 1`,
		`berth_operation_duration_seconds_count{kind="link",op="release"} 2`,
		`berth_operation_duration_seconds_bucket{kind="link",op="release",le="0.025"} 1`,
		`berth_operation_holds_total{kind="link",op="release",result="ok"} 32`,
		`berth_operation_holds_total{kind="link",op="release",result="failed"} 1`,
		`berth_requests_executing 0`,
		`berth_requests_waiting{lane="break"} 0`,
		`berth_ledger_commits_per_transaction_bucket{le="4"} 1`,
		`berth_ledger_commits_per_transaction_bucket{le="8"} 3`,
		`berth_ledger_commits_per_transaction_bucket{le="+Inf"} 3`,
		`berth_ledger_commits_per_transaction_sum 9`,
		`berth_ledger_records{sort="owner"} 4`,
		`berth_ledger_reserve_ok 1`,
		`toy_shelf 3`,
	} {
		if !strings.Contains("\n"+a.body, "\n"+line+"\n") {
			t.Errorf("missing: %s", line)
		}
	}
	if t.Failed() {
		t.Log(a.body)
	}
}

func TestServeMetrics(t *testing.T) {
	a := startToy(t)
	addr, err := a.ServeMetrics(":0")
	must(t, err)
	if !strings.HasPrefix(addr.String(), "127.0.0.1:") {
		t.Errorf("without a host it listens on %v", addr)
	}
	if _, err := a.ServeMetrics("nonsense"); err == nil {
		t.Error("nonsense is an address")
	}
	ask := func(path string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+addr.String()+path, nil)
		must(t, err)
		tr := &http.Transport{}
		defer tr.CloseIdleConnections()
		resp, err := tr.RoundTrip(req)
		if err != nil {
			return 0, err.Error()
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		must(t, err)
		return resp.StatusCode, string(body)
	}
	if status, body := ask(api.PathMetrics); status != 200 || !strings.Contains(body, "berth_serving 0") {
		t.Errorf("%d %s", status, body)
	}
	if status, body := ask(api.PathHealth); status != 200 || body != `{"serving":false}`+"\n" {
		t.Errorf("%d %s", status, body)
	}
	for _, path := range []string{pathToys, pathToys + "/bear", pathState, pathNews, "/"} {
		if status, body := ask(path); status != 404 || !strings.Contains(body, "this address serves only") {
			t.Errorf("%s by TCP: %d %s", path, status, body)
		}
	}
	must(t, a.Shutdown(t.Context()))
	if status, body := ask(api.PathHealth); status != 0 {
		t.Errorf("after the stop: %d %s", status, body)
	}
}

// The daemon itself reports repairs, findings and reloads, and the metrics have their figures.
func TestMeter(t *testing.T) {
	d := startToy(t)
	d.Open()
	figures := func() string { return "\n" + d.ask(t.Context(), "GET", api.PathMetrics, "", nil).body }
	want := func(when string, lines ...string) {
		t.Helper()
		for _, line := range lines {
			if got := figures(); !strings.Contains(got, "\n"+line) {
				t.Errorf("%s: missing %s", when, line)
			}
		}
	}
	want("at the start", `berth_build_info{goversion="go1.`, "berth_config_last_reload_successful 1\n", "berth_config_last_reload_success_timestamp_seconds 1.")
	d.metrics.Repaired("link")
	d.metrics.Repaired("link")
	d.metrics.Found(map[string]int{"changed": 2, "missing": 1})
	d.metrics.Found(map[string]int{"changed": 0, "missing": 1})
	d.metrics.Reloaded(errors.New("bad"))
	want("later", `berth_repairs_total{kind="link"} 2`+"\n", `berth_audit_findings{type="changed"} 0`+"\n", `berth_audit_findings{type="missing"} 1`+"\n",
		"berth_config_last_reload_successful 0\n", "berth_config_last_reload_success_timestamp_seconds 1.")
	d.metrics.Found(map[string]int{"changed": 2})
	d.metrics.Found(map[string]int{"missing": 2})
	want("after a report that does not name a type", `berth_audit_findings{type="changed"} 0`+"\n", `berth_audit_findings{type="missing"} 2`+"\n", "berth_audit_timestamp_seconds 1.")
	d.metrics.Reloaded(nil)
	want("when all is well", "berth_config_last_reload_successful 1\n")
}
