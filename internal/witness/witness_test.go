package witness

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cri/sandbox"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// attached returns an attachment of the pod default/web that is an hour old.
func attached(change func(*api.Attachment)) api.Attachment {
	at := api.Attachment{
		ID: "a", State: api.StateAttached, Network: "berth", ContainerID: "c1", Ifname: "eth0",
		Pod: &api.Pod{Namespace: "default", Name: "web", UID: "u1"}, Created: now.Add(-time.Hour),
	}
	if change != nil {
		change(&at)
	}
	return at
}

func pods(all ...api.Pod) *api.ClusterPods { return &api.ClusterPods{Enabled: true, Pods: all} }

func sandboxes(all ...sandbox.Sandbox) *[]sandbox.Sandbox { return &all }

// What follows of what each witness says of one attachment.
func TestVerdicts(t *testing.T) {
	web := api.Pod{Namespace: "default", Name: "web", UID: "u1"}
	runs := sandbox.Sandbox{ID: "c1", Ready: true, Namespace: "default", Name: "web", UID: "u1"}
	stopped, again, others := runs, runs, runs
	stopped.Ready, again.ID, others.ID, others.UID = false, "c2", "c9", "u9"
	noUID := func(at *api.Attachment) { at.Pod = &api.Pod{Namespace: "default", Name: "web"} }
	for _, c := range []struct {
		what      string
		change    func(*api.Attachment)
		pods      *api.ClusterPods
		sandboxes *[]sandbox.Sandbox
		want      string // verdict api runtime successor sandbox
	}{
		{"all have it", nil, pods(web), sandboxes(runs), ""},
		{"its sandbox is stopped", nil, pods(web), sandboxes(stopped), ""},
		{"nobody else has it", nil, pods(), sandboxes(), "leaked gone gone"},
		{"others are there", nil, pods(api.Pod{Namespace: "other", Name: "web", UID: "u9"}), sandboxes(others), "leaked gone gone"},
		{"only the runtime has it", nil, pods(), sandboxes(runs), "gone-from-api gone present"},
		{"only the runtime has it, stopped", nil, pods(), sandboxes(stopped), "gone-from-api gone stopped"},
		{"only the API server has it", nil, pods(web), sandboxes(others), "gone-from-runtime present gone"},
		{"the pod has another sandbox", nil, pods(web), sandboxes(again), "gone-from-runtime present gone  c2"},
		{"a successor has its name", nil, pods(api.Pod{Namespace: "default", Name: "web", UID: "u2"}), sandboxes(), "leaked gone gone u2"},
		{"a successor has its name, and it runs", nil, pods(api.Pod{Namespace: "default", Name: "web", UID: "u2"}), sandboxes(runs), "gone-from-api gone present u2"},
		{"it is young", func(at *api.Attachment) { at.Created = now.Add(-Settles + 1) }, pods(), sandboxes(), "too-young gone gone"},
		{"it is just old enough", func(at *api.Attachment) { at.Created = now.Add(-Settles) }, pods(), sandboxes(), "leaked gone gone"},
		{"the API server is away", nil, nil, sandboxes(), "unproven unknown gone"},
		{"the API server is away, and it runs", nil, nil, sandboxes(runs), ""},
		{"the runtime is away", nil, pods(), nil, "unproven gone unknown"},
		{"both are away", nil, nil, nil, ""},
		{"no UID, and nobody has the name", noUID, pods(), sandboxes(), "leaked gone gone"},
		{"no UID, and somebody has the name", noUID, pods(web), sandboxes(), "gone-from-runtime present gone"},
		{"of no pod", func(at *api.Attachment) { at.Pod = nil }, pods(), sandboxes(), ""},
		{"being made", func(at *api.Attachment) { at.State = api.StateAttaching }, pods(), sandboxes(), ""},
		{"being released", func(at *api.Attachment) { at.State = api.StateReleasing }, pods(), sandboxes(), ""},
		{"owed", func(at *api.Attachment) { at.State = api.StateOwed }, pods(), sandboxes(), ""},
	} {
		at := attached(c.change)
		list := []api.Attachment{at}
		findings, _ := Compare(Said{Before: list, After: list, Pods: c.pods, Sandboxes: c.sandboxes, MinAge: Settles}, now)
		got := ""
		for _, f := range findings {
			got = fmt.Sprint(f.Verdict, " ", f.API, " ", f.Runtime)
			if f.Successor+f.Sandbox != "" {
				got += " " + f.Successor
			}
			if f.Sandbox != "" {
				got += " " + f.Sandbox
			}
			if (f.Release == "berth release a") != (f.Verdict == Leaked) {
				t.Errorf("%s: the command is %q", c.what, f.Release)
			}
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
	}
}

// What goes or comes while the witnesses are asked is not compared.
func TestOnlyWhatStays(t *testing.T) {
	gone, going, came := attached(nil), attached(nil), attached(nil)
	gone.ID, going.ID, came.ID = "gone", "going", "came"
	released := going
	released.State = api.StateReleasing
	s := Said{Before: []api.Attachment{gone, going}, After: []api.Attachment{released, came}, Pods: pods(), Sandboxes: sandboxes()}
	if findings, compared := Compare(s, now); len(findings) != 0 || compared != 0 {
		t.Errorf("%d are compared, and %v found", compared, findings)
	}
}

// The worst comes first, and of that the oldest.
func TestOrder(t *testing.T) {
	var list []api.Attachment
	for i, age := range []time.Duration{time.Minute, time.Hour, 2 * time.Hour} {
		list = append(list, attached(func(at *api.Attachment) { at.ID, at.Created = fmt.Sprint(i), now.Add(-age) }))
	}
	findings, compared := Compare(Said{Before: list, After: list, Pods: pods(), Sandboxes: sandboxes(), MinAge: Settles}, now)
	var ids []string
	for _, f := range findings {
		ids = append(ids, f.ID)
	}
	if compared != 3 || !slices.Equal(ids, []string{"2", "1", "0"}) {
		t.Errorf("%d are compared, and found in the order %v", compared, ids)
	}
}

// An API server that has no pod at all on the node was asked for another node's, if the agent has attached pods.
func TestNobody(t *testing.T) {
	some, none := []api.Attachment{{Pod: &api.Pod{UID: "u1"}}}, []api.Attachment{{}}
	for _, c := range []struct {
		said Said
		want bool
	}{
		{Said{Before: some, Pods: pods()}, true},
		{Said{Before: some, Pods: pods(api.Pod{UID: "u2"})}, false},
		{Said{Before: none, Pods: pods()}, false},
		{Said{Before: some}, false},
	} {
		if got := c.said.Nobody(); got != c.want {
			t.Errorf("%+v: %t", c.said, got)
		}
	}
}

// A runtime that has none of the pods that the API server has on the node is not the kubelet's.
func TestAnother(t *testing.T) {
	web, agent := api.Pod{UID: "u1"}, api.Pod{UID: "u0"}
	for _, c := range []struct {
		said Said
		want bool
	}{
		{Said{Pods: pods(web, agent), Sandboxes: sandboxes(sandbox.Sandbox{ID: "x", UID: "u0"})}, false},
		{Said{Pods: pods(web, agent), Sandboxes: sandboxes(sandbox.Sandbox{ID: "x", UID: "u7"})}, true},
		{Said{Pods: pods(web), Sandboxes: sandboxes()}, true},
		{Said{Pods: pods(), Sandboxes: sandboxes()}, false},
		{Said{Sandboxes: sandboxes()}, false},
		{Said{Pods: pods(web)}, false},
	} {
		if got := c.said.Another(); got != c.want {
			t.Errorf("%+v: %t", c.said, got)
		}
	}
}
