package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/api/client"
)

func (a *app) healthCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "health",
		Short: "Show which nodes of the cluster this node reaches; exit code 0 only if all",
		Long: `Show which nodes of the Kubernetes cluster this node reaches, and how long their last
answers took. Each node has a responder, which is attached to the network as a pod
is. From there the agent probes the other nodes' responders over HTTP (path pod),
and the other nodes themselves by ICMP (path node), in each family. A node
without an answering agent tells no address of a responder at first, and does not
answer by the path pod later.

The exit code is 0 if all ways that were tried are well, 1 if one is not or if
this node's own responder does not answer, and 2 if the agent does not say.`,
		Example: `  berth health
  berth health -o json | jq '.probes[] | select(.reachable | not)'`,
		RunE: func(c *cobra.Command, _ []string) error { return a.health(c.Context()) },
	}
}

func (a *app) health(ctx context.Context) error {
	var h api.ClusterHealth
	err := a.ask(ctx, func(ctx context.Context, c *client.Client) (err error) {
		h, err = c.Nodes(ctx)
		return err
	})
	if err != nil {
		return coded{2, err}
	}
	if err := a.print(h, func() { a.showHealth(h) }); err != nil {
		return coded{2, err}
	}
	if h.Error != "" || unreached(h) > 0 {
		return exit(1)
	}
	return nil
}

// unreached counts the ways that were tried and are not well.
func unreached(h api.ClusterHealth) (n int) {
	for _, p := range h.Probes {
		if !p.Reachable && !p.Tried.IsZero() {
			n++
		}
	}
	return n
}

func (a *app) showHealth(h api.ClusterHealth) {
	if !h.Enabled {
		a.none("the agent probes nobody: it belongs to no cluster, or its configuration says so (kubernetes.health)")
		return
	}
	if len(h.Probes) > 0 {
		t := newTable("NODE", "PATH", "FAMILY", "ADDRESS", "LATENCY", "ANSWERED", "FAILURES", "ERROR")
		for _, p := range h.Probes {
			latency, answered, failures := cell{"unknown", yellow}, "never", ""
			switch {
			case p.Reachable:
				latency = cell{took(p.Latency), green}
			case !p.Tried.IsZero():
				latency, failures = cell{"unreachable", red}, count(p.Failures, "probe")
			}
			if !p.Answered.IsZero() {
				answered = a.ago(p.Answered) + " ago"
			}
			t.row(p.Node, p.Path, p.Family, p.Address, latency, answered, failures, p.Error)
		}
		a.table(t)
	}
	verdict := a.ink(green, "all that were tried are well")
	if n := unreached(h); n > 0 {
		verdict = a.ink(red, count(n, "way")+" unreachable")
	}
	a.say("%s from %s, each probed every %s: %s\n", count(len(h.Probes), "way"), h.Node, span(h.Interval), verdict)
	if h.Error != "" {
		a.say("%s\n", a.ink(red, "nobody is probed, because this node's responder does not answer: "+h.Error))
	}
}

// took shows how long an answer took.
func took(d time.Duration) string {
	if d < time.Millisecond {
		return d.Round(time.Microsecond).String()
	}
	return d.Round(10 * time.Microsecond).String()
}
