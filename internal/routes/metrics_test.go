package routes_test

import (
	"context"
	"errors"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/daemon/server"
	"github.com/berth-net/berth/internal/routes/routestest"
)

func TestMetrics(t *testing.T) {
	verbs := &routestest.Verbs{DeletedOwed: 2, Hook: func(_ context.Context, verb string, _ server.When) error {
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
	verbs.Put(routestest.Attachment("aaaaaaaaaa", "c1"), routestest.Attachment("bbbbbbbbbb", "c2"))
	a := routestest.Start(t, verbs)
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
	_, _, body := get(t, a, api.PathMetrics, nil)
	for _, line := range []string{
		`berth_serving 1`,
		`berth_requests_total{result="failed",verb="add"} 1`,
		`berth_requests_total{result="again",verb="check"} 1`,
		`berth_requests_total{result="owed",verb="delete"} 1`,
		`berth_requests_total{result="unknown",verb="delete"} 1`,
		`berth_attachments{state="owed"} 1`,
		`berth_attachments{state="attached"} 0`,
		`berth_owed_holds{kind="link"} 1`,
		`berth_owed_holds{kind="bpf"} 1`,
		`berth_deletions_queued 2`,
		`berth_deletions_damaged 1`,
		`berth_deletions_spare 7`,
		`berth_pool_addresses{cidr="10.88.0.0/16",pool="default"} 65534`,
		`berth_pool_addresses{cidr="fd00::/64",pool="default"} 1.8446744073709552e+19`,
		`berth_pool_used_addresses{cidr="10.88.0.0/16",pool="default"} 1`,
		`berth_pool_resting_addresses{cidr="10.88.0.0/16",pool="default"} 2`,
		`berth_pool_exhausted{pool="default"} 1`,
		`berth_cluster_unrouted_nodes 3`,
		`berth_cluster_api_failures 1`,
		`berth_cluster_events_total{result="written"} 5`,
		`berth_cluster_events_total{result="retried"} 4`,
		`berth_cluster_events_total{result="refused"} 1`,
		`berth_cluster_events_total{result="dropped"} 2`,
		`berth_health_ways{path="node"} 1`,
		`berth_health_ways{path="pod"} 1`,
		`berth_health_unreachable_ways{path="node"} 1`,
		`berth_health_unreachable_ways{path="pod"} 0`,
		`berth_health_responder_failing 0`,
		`berth_health_peer_reachable{family="IPv4",path="node",peer="n2"} 0`,
		`berth_health_peer_reachable{family="IPv4",path="pod",peer="n2"} 1`,
		`berth_health_peer_latency_seconds{family="IPv4",path="pod",peer="n2"} 0.000421`,
		`berth_requests_executing 0`,
		`berth_requests_waiting{lane="delete"} 0`,
	} {
		if !strings.Contains("\n"+body, "\n"+line+"\n") {
			t.Errorf("missing: %s", line)
		}
	}
	if !regexp.MustCompile(`(?m)^berth_deletions_oldest_age_seconds [1-9]`).MatchString(body) {
		t.Error("missing: the age of the oldest queued deletion")
	}
	if t.Failed() {
		t.Log(body)
	}
}

// The age that the metrics give for a kind is the age of the kind's oldest owed hold. The figures of a
// kind that owes nothing any more are 0.
func TestMetricsOfOwed(t *testing.T) {
	verbs := &routestest.Verbs{}
	old, young := routestest.Attachment("aaaaaaaaaa", "c1"), routestest.Attachment("bbbbbbbbbb", "c2")
	now := time.Now()
	old.Owed[0].Since, young.Owed[0].Since = now.Add(-2*time.Hour), now.Add(-time.Minute)
	verbs.Put(young, old)
	a := routestest.Start(t, verbs)
	a.Open()
	_, _, body := get(t, a, api.PathMetrics, nil)
	age := regexp.MustCompile(`(?m)^berth_owed_oldest_age_seconds\{kind="link"\} (.*)$`)
	found := age.FindStringSubmatch(body)
	if len(found) != 2 || !strings.Contains(body, "\nberth_owed_holds{kind=\"link\"} 2\n") {
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
	for _, line := range []string{`berth_owed_holds{kind="link"} 0`, `berth_owed_oldest_age_seconds{kind="link"} 0`} {
		if !strings.Contains(body, "\n"+line+"\n") {
			t.Errorf("missing: %s", line)
		}
	}
}
