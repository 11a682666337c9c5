// Package witness compares what three witnesses say of the pods that are attached on a node: the agent's ledger, the container
// runtime, and the cluster's API server. It says what nobody but the ledger knows any more, for a person to release. It releases
// nothing: an API server can be wrong about a pod that runs, so its word alone never takes a pod's network.
//
// Compare is a function of what the witnesses said; the caller asks them, in the order that Said demands.
package witness

import (
	"slices"
	"strings"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cri/sandbox"
)

// Settles is how old an attachment should be to count as leaked. A runtime does not list a sandbox that it is making, and the
// kubelet gives it four minutes for that (twice its runtimeRequestTimeout).
const Settles = 5 * time.Minute

// What a witness says of a pod, or of its sandbox.
const (
	Present = "present"
	Stopped = "stopped" // the runtime has the sandbox, which is not ready: the kubelet still has to remove it
	Gone    = "gone"
	Unknown = "unknown" // the witness could not be asked
)

// What follows of an attachment.
const (
	Leaked          = "leaked"            // API server and runtime both say that it is gone
	GoneFromAPI     = "gone-from-api"     // the runtime still has its sandbox: the kubelet has to stop that, or has not heard yet
	GoneFromRuntime = "gone-from-runtime" // the API server still has the pod: the kubelet makes a sandbox anew, or lets the pod end
	TooYoung        = "too-young"         // both say that it is gone, and it may be being made
	Unproven        = "unproven"          // one says that it is gone, and the other could not be asked
)

// Verdicts returns all of these, what matters most first.
func Verdicts() []string { return []string{Leaked, Unproven, GoneFromAPI, GoneFromRuntime, TooYoung} }

// Said is what the witnesses said.
type Said struct {
	// Before and After are the agent's lists from before and after the other two were asked. Only what is in both counts: what came
	// meanwhile the others could not know, and what went they may have known to go.
	Before, After []api.Attachment
	Pods          *api.ClusterPods   // nil: the API server could not be asked
	Sandboxes     *[]sandbox.Sandbox // nil: the runtime could not be asked
	MinAge        time.Duration      // of what counts as leaked: see Settles
}

// Finding is an attachment of a pod that a witness does not have any more.
type Finding struct {
	Verdict     string    `json:"verdict"`
	ID          string    `json:"id"` // of the attachment
	Network     string    `json:"network"`
	ContainerID string    `json:"containerID"`
	Ifname      string    `json:"ifname"`
	Pod         api.Pod   `json:"pod"`
	Addresses   []string  `json:"addresses"`
	Created     time.Time `json:"created"`
	API         string    `json:"api"`     // Present, Gone or Unknown
	Runtime     string    `json:"runtime"` // Present, Stopped, Gone or Unknown
	// Successor is the UID of the pod that has this pod's name now, on this node; Sandbox is another sandbox that the pod has now.
	Successor string `json:"successor,omitempty"`
	Sandbox   string `json:"sandbox,omitempty"`
	Release   string `json:"release,omitempty"` // the command by which a person releases what is leaked
}

// Compare returns what the witnesses do not all have, by verdict and age, and how many attachments of pods it compared. Attachments
// that are of no pod, or that the agent is making or releasing, are not compared.
func Compare(s Said, now time.Time) (findings []Finding, compared int) {
	findings = []Finding{}
	stays := map[string]bool{}
	for _, at := range s.After {
		stays[at.ID] = at.State == api.StateAttached
	}
	w := witnesses{Said: s, now: now}
	for _, at := range s.Before {
		if at.Pod == nil || at.Pod.Name == "" || at.State != api.StateAttached || !stays[at.ID] {
			continue
		}
		compared++
		if f := w.look(at); f.Verdict != "" {
			findings = append(findings, f)
		}
	}
	rank := Verdicts()
	slices.SortStableFunc(findings, func(a, b Finding) int {
		if c := slices.Index(rank, a.Verdict) - slices.Index(rank, b.Verdict); c != 0 {
			return c
		}
		if c := a.Created.Compare(b.Created); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	return findings, compared
}

// Another reports whether the runtime is another one than the kubelet's: it has none of the pods that the API server has on this
// node. The node has at least the agent's own pod, where the agent is one.
func (s Said) Another() bool {
	if s.Pods == nil || s.Sandboxes == nil || len(s.Pods.Pods) == 0 {
		return false
	}
	return !slices.ContainsFunc(*s.Sandboxes, func(b sandbox.Sandbox) bool {
		return slices.ContainsFunc(s.Pods.Pods, func(p api.Pod) bool { return p.UID == b.UID })
	})
}

// Nobody reports whether the API server says that the node has no pod at all, where the agent has attached some: then the agent has most
// likely asked for another node's. A node that takes part in a cluster has pods, of which the kubelet runs at least one for
// the node itself.
func (s Said) Nobody() bool {
	return s.Pods != nil && len(s.Pods.Pods) == 0 && slices.ContainsFunc(s.Before, func(at api.Attachment) bool { return at.Pod != nil })
}

type witnesses struct {
	Said
	now time.Time
}

// look returns what the witnesses say of an attachment. It has no verdict if all have its pod.
func (w witnesses) look(at api.Attachment) Finding {
	f := Finding{
		ID: at.ID, Network: at.Network, ContainerID: at.ContainerID, Ifname: at.Ifname, Pod: *at.Pod, Addresses: at.Addresses, Created: at.Created,
	}
	f.API, f.Successor = w.api(*at.Pod)
	f.Runtime, f.Sandbox = w.runtime(at)
	switch api, runtime := f.API == Gone, f.Runtime == Gone; {
	case api && runtime && w.now.Sub(at.Created) < w.MinAge:
		f.Verdict = TooYoung
	case api && runtime:
		f.Verdict, f.Release = Leaked, "berth release "+at.ID
	case api && f.Runtime == Unknown, runtime && f.API == Unknown:
		f.Verdict = Unproven
	case api:
		f.Verdict = GoneFromAPI
	case runtime:
		f.Verdict = GoneFromRuntime
	}
	return f
}

// api returns what the API server says of a pod, and the UID of its successor. A pod is its UID: a StatefulSet's successor is another
// pod of the same name. A runtime that names no UIDs leaves the name, which a pod that is there may have from the pod before it.
func (w witnesses) api(pod api.Pod) (said, successor string) {
	if w.Pods == nil {
		return Unknown, ""
	}
	for _, p := range w.Pods.Pods {
		named := p.Namespace == pod.Namespace && p.Name == pod.Name
		switch {
		case pod.UID != "" && p.UID == pod.UID, pod.UID == "" && named:
			return Present, ""
		case named:
			successor = p.UID
		}
	}
	return Gone, successor
}

// runtime returns what the runtime says of an attachment's sandbox, and another sandbox of the same pod.
func (w witnesses) runtime(at api.Attachment) (said, other string) {
	if w.Sandboxes == nil {
		return Unknown, ""
	}
	for _, s := range *w.Sandboxes {
		switch {
		case s.ID == at.ContainerID && s.Ready:
			return Present, ""
		case s.ID == at.ContainerID:
			return Stopped, ""
		case s.Ready && s.UID != "" && s.UID == at.Pod.UID:
			other = s.ID
		}
	}
	return Gone, other
}
