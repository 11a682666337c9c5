package server_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/server"
	"github.com/berth-net/berth/internal/server/servertest"
)

func TestMetrics(t *testing.T) {
	verbs := &servertest.Verbs{DeletedOwed: 2, Hook: func(_ context.Context, verb string, _ server.When) error {
		switch verb {
		case "add":
			return errors.New("broken")
		case "check":
			return cni.Errorf(cni.CodeTryAgain, "later", "")
		case "status":
			return cni.Errorf(cni.CodeNotAvailable, "pool exhausted", "")
		}
		return nil
	}}
	verbs.Put(servertest.Attachment("aaaaaaaaaa", "c1"), servertest.Attachment("bbbbbbbbbb", "c2"))
	a := servertest.Start(t, verbs)
	a.Metrics.ObserveKind("link", "release", 20*time.Millisecond, 32, nil)
	a.Metrics.ObserveKind("link", "release", time.Second, 1, errors.New("busy"))
	a.Metrics.ObserveLedger(func() ledger.Stats {
		return ledger.Stats{Commits: 9, Transactions: 3, Batches: [10]uint64{1, 0, 0, 2}, Owners: 4, ReserveOK: true}
	})
	waitFor(t, a, "berth_serving 0")
	a.Open()
	if _, err := a.Client.Add(t.Context(), addRequest); err == nil {
		t.Error("the ADD succeeded")
	}
	if err := a.Client.Check(t.Context(), addRequest); err == nil {
		t.Error("the CHECK succeeded")
	}
	if _, err := a.Client.Delete(t.Context(), api.Filter{Container: "c1"}, false); err != nil {
		t.Error(err)
	}
	if _, err := a.Client.Delete(t.Context(), api.Filter{Container: "c9"}, false); err == nil {
		t.Error("an unknown one was deleted")
	}
	_, h, body := get(t, a, api.PathMetrics, nil)
	if got := h.Get("Content-Type"); !strings.HasPrefix(got, "text/plain") {
		t.Errorf("content type %q", got)
	}
	for _, line := range []string{
		`berth_serving 1`,
		`berth_verb_seconds_count{result="failed",verb="add"} 1`,
		`berth_verb_seconds_count{result="again",verb="check"} 1`,
		`berth_verb_seconds_count{result="owed",verb="delete"} 1`,
		`berth_verb_seconds_count{result="unknown",verb="delete"} 1`,
		`berth_kind_seconds_count{kind="link",op="release"} 2`,
		`berth_kind_seconds_bucket{kind="link",op="release",le="0.025"} 1`,
		`berth_kind_holds_total{kind="link",op="release",result="ok"} 32`,
		`berth_kind_holds_total{kind="link",op="release",result="failed"} 1`,
		`berth_attachments{state="owed"} 1`,
		`berth_attachments{state="attached"} 0`,
		`berth_owed{kind="link"} 1`,
		`berth_owed{kind="bpf"} 1`,
		`berth_deletions_queued 1`,
		`berth_deletions_damaged 1`,
		`berth_deletions_spare 7`,
		`berth_pool_addresses{cidr="10.88.0.0/16",pool="default"} 65534`,
		`berth_pool_addresses{cidr="fd00::/64",pool="default"} 1.8446744073709552e+19`,
		`berth_pool_used_addresses{cidr="10.88.0.0/16",pool="default"} 1`,
		`berth_pool_resting_addresses{cidr="10.88.0.0/16",pool="default"} 2`,
		`berth_requests_executing 0`,
		`berth_requests_waiting{lane="delete"} 0`,
		`berth_ledger_commits_per_transaction_bucket{le="4"} 1`,
		`berth_ledger_commits_per_transaction_bucket{le="8"} 3`,
		`berth_ledger_commits_per_transaction_bucket{le="+Inf"} 3`,
		`berth_ledger_commits_per_transaction_sum 9`,
		`berth_ledger_records{sort="owner"} 4`,
		`berth_ledger_reserve_ok 1`,
	} {
		if !strings.Contains("\n"+body, "\n"+line+"\n") {
			t.Errorf("missing: %s", line)
		}
	}
	if t.Failed() {
		t.Log(body)
	}
}

// The age of what is owed is that of the oldest, and a kind that owes nothing
// any more is at 0.
func TestMetricsOfOwed(t *testing.T) {
	verbs := &servertest.Verbs{}
	old, young := servertest.Attachment("aaaaaaaaaa", "c1"), servertest.Attachment("bbbbbbbbbb", "c2")
	now := time.Now()
	old.Owed[0].Since, young.Owed[0].Since = now.Add(-2*time.Hour), now.Add(-time.Minute)
	verbs.Put(young, old)
	a := servertest.Start(t, verbs)
	a.Open()
	_, _, body := get(t, a, api.PathMetrics, nil)
	age := regexp.MustCompile(`(?m)^berth_owed_oldest_seconds\{kind="link"\} (.*)$`)
	found := age.FindStringSubmatch(body)
	if len(found) != 2 || !strings.Contains(body, "\nberth_owed{kind=\"link\"} 2\n") {
		t.Fatalf("there is no age, or not 2 are owed:\n%s", body)
	}
	if seconds, err := strconv.ParseFloat(found[1], 64); err != nil || seconds < 7200 || seconds > 9000 {
		t.Errorf("the oldest is owed for %s s, %v; want 2 hours", found[1], err)
	}
	if _, err := a.Client.DeleteOne(t.Context(), "aaaaaaaaaa", false); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Client.DeleteOne(t.Context(), "bbbbbbbbbb", false); err != nil {
		t.Fatal(err)
	}
	_, _, body = get(t, a, api.PathMetrics, nil)
	for _, line := range []string{`berth_owed{kind="link"} 0`, `berth_owed_oldest_seconds{kind="link"} 0`} {
		if !strings.Contains(body, "\n"+line+"\n") {
			t.Errorf("missing: %s", line)
		}
	}
}

func TestServeMetrics(t *testing.T) {
	a := servertest.Start(t, &servertest.Verbs{})
	addr, err := a.ServeMetrics(":0")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(addr.String(), "127.0.0.1:") {
		t.Errorf("without a host it listens on %v", addr)
	}
	if _, err := a.ServeMetrics("nonsense"); err == nil {
		t.Error("nonsense is an address")
	}
	ask := func(path string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+addr.String()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		tr := &http.Transport{}
		defer tr.CloseIdleConnections()
		resp, err := tr.RoundTrip(req)
		if err != nil {
			return 0, err.Error()
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	if status, body := ask(api.PathMetrics); status != 200 || !strings.Contains(body, "berth_serving 0") {
		t.Errorf("%d %s", status, body)
	}
	if status, body := ask(api.PathHealth); status != 200 || body != `{"serving":false}`+"\n" {
		t.Errorf("%d %s", status, body)
	}
	for _, path := range []string{api.PathAttachments, api.PathStatus, api.PathLedger, api.PathEvents, "/"} {
		if status, body := ask(path); status != 404 || !strings.Contains(body, "all that is served here") {
			t.Errorf("%s by TCP: %d %s", path, status, body)
		}
	}
	if err := a.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if status, body := ask(api.PathHealth); status != 0 {
		t.Errorf("after the stop: %d %s", status, body)
	}
}
