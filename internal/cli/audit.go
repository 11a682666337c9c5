package cli

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/api/client"
	"github.com/berth-net/berth/internal/witness"
)

func (a *app) auditCommand() *cobra.Command {
	var pods, cluster bool
	var f clusterFlags
	c := &cobra.Command{
		Use:   "audit [--pods | --cluster]",
		Short: "Look for what is left over or missing; exit code 0 only if nothing is",
		Long: `Have the agent compare its ledger with the node. The audit finds things that
bear the agent's stamp and have no owner, things that an owner should have and
lacks, things that differ, what is owed, and queued deletions that are late. With
--pods it looks into the attached pods as well: at their interface, addresses,
routes and neighbours, which the agent never repairs. The exit code is 0 exactly
when the audit finds nothing, 1 when it finds something, and 2 when the audit
fails, for example because the agent is away.

With --cluster it compares the attached pods of a Kubernetes node instead with
what two others say: the API server, which the agent asks, and the container
runtime, which this command asks over its socket (CRI). What neither has any more
is leaked. What only one of them lacks is normal for a while. The audit releases
nothing, and says by which command a person does. The exit code is 1 if something
is leaked, and 2 if the API server or the runtime could not be asked.`,
		Example: `  berth audit
  berth audit --pods
  berth audit -o json | jq '.findings[]'
  berth audit --cluster --runtime-endpoint unix:///run/containerd/containerd.sock`,
		Args: func(c *cobra.Command, args []string) error {
			switch {
			case cluster && pods:
				return errors.New("--pods and --cluster are two audits: ask for one of them")
			case !cluster && (c.Flags().Changed("runtime-endpoint") || c.Flags().Changed("min-age")):
				return errors.New("--runtime-endpoint and --min-age are for --cluster")
			}
			return errors.Join(cobra.NoArgs(c, args), f.check())
		},
		RunE: func(c *cobra.Command, _ []string) error {
			if cluster {
				return a.auditCluster(c.Context(), f)
			}
			return a.audit(c.Context(), pods)
		},
	}
	fl := c.Flags()
	fl.BoolVar(&pods, "pods", false, "look into the pods as well")
	fl.BoolVar(&cluster, "cluster", false, "compare the pods with the API server and the container runtime")
	fl.StringVar(&f.endpoint, "runtime-endpoint", "", "the kubelet's container runtime, as unix:///PATH (default: the only one with a socket at its usual place)")
	fl.DurationVar(&f.minAge, "min-age", witness.Settles, "how old an attachment has to be to count as leaked")
	return c
}

func (a *app) audit(ctx context.Context, pods bool) error {
	audit, err := a.askAudit(ctx, pods)
	if err != nil {
		return coded{2, err}
	}
	if err := a.print(audit, func() { a.showAudit(audit) }); err != nil {
		return coded{2, err}
	}
	if len(audit.Findings) > 0 {
		return exit(1)
	}
	return nil
}

func (a *app) showAudit(audit api.Audit) {
	verdict := a.ink(green, "nothing is left over or missing")
	if len(audit.Findings) > 0 {
		t := newTable("FINDING", "KIND", "WHAT", "OWNER", "OF", "DETAIL")
		for _, f := range audit.Findings {
			t.row(cell{f.Type, red}, f.Kind, f.What, f.Owner, f.Of, f.Detail)
		}
		a.table(t)
		verdict = a.ink(red, count(len(audit.Findings), "finding"))
	}
	a.say("%s, %s audited: %s\n", count(audit.Owners, "owner"), count(audit.Holds, "hold"), verdict)
}

func (a *app) askAudit(ctx context.Context, pods bool) (audit api.Audit, err error) {
	err = a.ask(ctx, func(ctx context.Context, c *client.Client) error {
		look := c.Audit
		if pods {
			look = c.AuditPods
		}
		audit, err = look(ctx)
		return err
	})
	return audit, err
}
