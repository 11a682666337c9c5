package kubectl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// agent is a node's agent.
type agent struct {
	node string
	pod  string // of the DaemonSet; empty: the node has none that runs
}

// agents returns the agents that a command with arguments asks, in the order of their nodes' names.
func (p *plugin) agents(ctx context.Context, args []string) ([]agent, error) {
	pods, err := p.pods(ctx)
	if err != nil {
		return nil, err
	}
	nodes := p.nodes
	if len(nodes) == 0 {
		if node := p.nodeOf(ctx, args); node != "" {
			nodes = []string{node}
		}
	}
	if len(nodes) == 0 {
		if nodes, err = p.all(ctx, pods); err != nil {
			return nil, err
		}
	}
	slices.Sort(nodes)
	var agents []agent
	for _, n := range slices.Compact(nodes) {
		agents = append(agents, agent{n, pods[n]})
	}
	return agents, nil
}

// pods returns the pods of the agents that run, by node.
func (p *plugin) pods(ctx context.Context) (map[string]string, error) {
	out, err := p.kubectl(ctx, "get", "pods", "--namespace="+p.namespace, "--selector="+p.selector, "--output=json")
	if err != nil {
		return nil, fmt.Errorf("looking for the agents' pods: %w", err)
	}
	var list struct {
		Items []struct {
			Metadata struct{ Name, DeletionTimestamp string }
			Spec     struct{ NodeName string }
			Status   struct{ Phase string }
		}
	}
	if err := json.Unmarshal(out, &list); err != nil {
		return nil, fmt.Errorf("looking for the agents' pods: %w", err)
	}
	if len(list.Items) == 0 {
		return nil, fmt.Errorf("namespace %s has no pods with %s: is Berth installed there?", p.namespace, p.selector)
	}
	pods := map[string]string{}
	for _, i := range list.Items {
		// While a DaemonSet is being updated, a node can have a pod that goes beside the one that stays.
		if i.Status.Phase == "Running" && (pods[i.Spec.NodeName] == "" || i.Metadata.DeletionTimestamp == "") {
			pods[i.Spec.NodeName] = i.Metadata.Name
		}
	}
	return pods, nil
}

// all returns the names of all nodes, also of those that have no agent. If the user may not list nodes, these are missing.
func (p *plugin) all(ctx context.Context, pods map[string]string) ([]string, error) {
	out, err := p.kubectl(ctx, "get", "nodes", "--output=name")
	if err != nil {
		fmt.Fprintf(p.errs, "kubectl berth: nodes without an agent are not shown: %v\n", err)
		return slices.Collect(maps.Keys(pods)), nil
	}
	var nodes []string
	for name := range strings.FieldsSeq(string(out)) {
		nodes = append(nodes, strings.TrimPrefix(name, "node/"))
	}
	if len(nodes) == 0 {
		return nil, errors.New("the cluster has no nodes")
	}
	return nodes, nil
}

// nodeOf returns the node of the pod that a command's argument names (NAMESPACE/NAME); "": none does, or the cluster
// does not have the pod any more, so any node may know of it.
func (p *plugin) nodeOf(ctx context.Context, args []string) string {
	for _, arg := range args[1:] {
		namespace, name, ok := strings.Cut(arg, "/")
		if !ok || namespace == "" || name == "" || strings.HasPrefix(arg, "-") || strings.Contains(name, "/") {
			continue
		}
		out, err := p.kubectl(ctx, "get", "pod", "--namespace="+namespace, "--output=jsonpath={.spec.nodeName}", "--", name)
		if err == nil {
			return strings.TrimSpace(string(out))
		}
	}
	return ""
}
