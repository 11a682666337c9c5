package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/api/client"
	"github.com/berth-net/berth/internal/cri/sandbox"
	"github.com/berth-net/berth/internal/witness"
)

// clusterAudit is what `berth audit --cluster -o json` prints.
type clusterAudit struct {
	Time     time.Time         `json:"time"`
	Node     string            `json:"node"`
	Version  string            `json:"version"`  // the resourceVersion of the API server's answer; "": there is none
	Endpoint string            `json:"endpoint"` // of the container runtime; "": none was found
	Compared int               `json:"compared"` // attachments of pods
	Findings []witness.Finding `json:"findings"`
	Unasked  []unasked         `json:"unasked"` // witnesses that could not be asked
}

// unasked is a witness that could not be asked, and why.
type unasked struct {
	Witness string `json:"witness"` // witnessAPI or witnessRuntime
	Error   string `json:"error"`
}

const (
	witnessAPI     = "api-server"
	witnessRuntime = "runtime"
)

// clusterFlags are the flags of an audit with --cluster.
type clusterFlags struct {
	endpoint string           // as given; "": the only runtime of the node
	runtime  sandbox.Endpoint // endpoint, checked
	minAge   time.Duration    // of what counts as leaked
}

func (f *clusterFlags) check() (err error) {
	if f.endpoint != "" {
		if f.runtime, err = sandbox.Parse(f.endpoint); err != nil {
			return fmt.Errorf("--runtime-endpoint: %w", err)
		}
	}
	if f.minAge < 0 {
		return fmt.Errorf("--min-age %v is negative", f.minAge)
	}
	return nil
}

// auditCluster compares the agent's attachments with what API server and runtime say.
func (a *app) auditCluster(ctx context.Context, f clusterFlags) error {
	audit, err := a.askWitnesses(ctx, f)
	if err != nil {
		return coded{2, err}
	}
	if err := a.print(audit, func() { a.showClusterAudit(audit) }); err != nil {
		return coded{2, err}
	}
	for _, u := range audit.Unasked {
		a.complain("could not ask the %s: %s", strings.ReplaceAll(u.Witness, "api-server", "API server"), u.Error)
	}
	switch {
	case len(audit.Unasked) > 0:
		return exit(2)
	case verdicts(audit.Findings)[witness.Leaked] > 0:
		return exit(1)
	}
	return nil
}

// askWitnesses asks the agent, then API server and runtime beside each other, then the agent again. It fails if the agent does not
// answer; what the others do not answer is in the audit.
func (a *app) askWitnesses(ctx context.Context, f clusterFlags) (clusterAudit, error) {
	audit, at := clusterAudit{Time: a.now(), Unasked: []unasked{}}, f.runtime
	said := witness.Said{MinAge: f.minAge}
	var err error
	if said.Before, err = a.list(ctx, api.Filter{}); err != nil {
		return audit, err
	}
	var apiErr, runtimeErr error
	var both sync.WaitGroup
	both.Go(func() { said.Pods, apiErr = a.askAPIServer(ctx) })
	both.Go(func() { at, said.Sandboxes, runtimeErr = askRuntime(ctx, at) })
	both.Wait()
	if at != "" {
		audit.Endpoint = at.String()
	}
	if said.Another() {
		said.Sandboxes = nil
		runtimeErr = fmt.Errorf("the one at %s has no pod of those that the API server has on this node: give the kubelet's with --runtime-endpoint", at)
	}
	if said.Nobody() {
		apiErr = fmt.Errorf("it has no pod on node %q, although the agent has attached some: is kubernetes.node in berthd.yaml this node's name?", said.Pods.Node)
		said.Pods = nil
	}
	if said.Pods != nil {
		audit.Node, audit.Version = said.Pods.Node, said.Pods.Version
	}
	for _, u := range []struct {
		witness string
		err     error
	}{{witnessAPI, apiErr}, {witnessRuntime, runtimeErr}} {
		if u.err != nil {
			audit.Unasked = append(audit.Unasked, unasked{u.witness, oneLine(u.err)})
		}
	}
	if said.After, err = a.list(ctx, api.Filter{}); err != nil {
		return audit, err
	}
	audit.Findings, audit.Compared = witness.Compare(said, a.now())
	return audit, nil
}

// askAPIServer has the agent ask the API server, whose credentials the agent alone has.
func (a *app) askAPIServer(ctx context.Context) (pods *api.ClusterPods, err error) {
	err = a.ask(ctx, func(ctx context.Context, c *client.Client) error {
		p, err := c.ClusterPods(ctx)
		switch {
		case client.IsUnknown(err):
			return errors.New("the agent is of a version that cannot ask it")
		case err != nil:
			return err
		case !p.Enabled:
			return errors.New("the node belongs to no cluster: berthd.yaml has no kubernetes")
		}
		pods = &p
		return nil
	})
	return pods, err
}

// askRuntime asks the runtime behind an endpoint; "": the only one that has a socket.
func askRuntime(ctx context.Context, at sandbox.Endpoint) (sandbox.Endpoint, *[]sandbox.Sandbox, error) {
	if at == "" {
		var err error
		if at, err = sandbox.Find(); err != nil {
			return "", nil, err
		}
	}
	all, err := sandbox.List(ctx, at)
	if err != nil {
		return at, nil, err
	}
	return at, &all, nil
}

// verdicts counts findings by their verdicts.
func verdicts(findings []witness.Finding) map[string]int {
	n := map[string]int{}
	for _, f := range findings {
		n[f.Verdict]++
	}
	return n
}

// clusterInks are the colours of verdicts; the others are normal for a while.
var clusterInks = map[string]ink{witness.Leaked: red, witness.Unproven: yellow}

// meanings say to people what follows of a verdict.
var meanings = map[string]string{
	witness.Leaked:          "nobody knows them any more",
	witness.Unproven:        "one witness says that they are gone, and the other could not be asked: release none of them",
	witness.GoneFromAPI:     "normal for a while: the kubelet has to stop the sandbox, or is away",
	witness.GoneFromRuntime: "normal for a while: the kubelet makes a sandbox anew, or the pod ends",
	witness.TooYoung:        "they may be being made, so look again in some minutes",
}

func (a *app) showClusterAudit(audit clusterAudit) {
	n := verdicts(audit.Findings)
	if len(audit.Findings) > 0 {
		t := newTable("VERDICT", "ID", "POD", "UID", "CONTAINER", "AGE", "API SERVER", "RUNTIME", "DETAIL")
		for _, f := range audit.Findings {
			t.row(cell{f.Verdict, clusterInks[f.Verdict]}, f.ID, podName(&f.Pod), f.Pod.UID, shortID(f.ContainerID), a.ago(f.Created), f.API, f.Runtime, detail(f))
		}
		a.table(t)
	}
	verdict := a.ink(green, "none is leaked")
	switch {
	case n[witness.Leaked] > 0:
		verdict = a.ink(red, fmt.Sprintf("%d leaked", n[witness.Leaked]))
	case len(audit.Unasked) > 0:
		verdict = a.ink(yellow, "whether one is leaked is not known")
	}
	a.say("%s of pods compared with the API server and the runtime of node %s: %s\n", count(audit.Compared, "attachment"), cmp.Or(audit.Node, "(unknown)"), verdict)
	for _, v := range witness.Verdicts() {
		if n[v] > 0 {
			a.say("%s: %s\n", a.ink(clusterInks[v], v), meanings[v])
		}
	}
	if n[witness.Leaked] > 0 {
		command := "berth release"
		for _, f := range audit.Findings {
			if f.Verdict == witness.Leaked {
				command += " " + f.ID
			}
		}
		a.say("Berth releases nothing on that word. To release them by hand: %s\n", command)
	}
}

// detail says what else is known of a finding's pod.
func detail(f witness.Finding) string {
	var parts []string
	if f.Successor != "" {
		parts = append(parts, "the pod of this name is another one, "+f.Successor)
	}
	if f.Sandbox != "" {
		parts = append(parts, "the pod has another sandbox, "+shortID(f.Sandbox))
	}
	return strings.Join(parts, "; ")
}
