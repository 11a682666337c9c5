package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/api/client"
)

func (a *app) auditCommand() *cobra.Command {
	var pods bool
	c := &cobra.Command{
		Use:   "audit [--pods]",
		Short: "Look for what is left over or missing; exit code 0 only if nothing is",
		Long: `Have the agent compare its ledger with the node. The audit finds things that
bear the agent's stamp and have no owner, things that an owner should have and
lacks, things that differ, what is owed, and queued deletions that are late. With
--pods it looks into the attached pods as well: at their interface, addresses,
routes and neighbours, which the agent never repairs. The exit code is 0 exactly
when the audit finds nothing, 1 when it finds something, and 2 when the audit
fails, for example because the agent is away.`,
		Example: `  berth audit
  berth audit --pods
  berth audit -o json | jq '.findings[]'`,
		RunE: func(c *cobra.Command, _ []string) error { return a.audit(c.Context(), pods) },
	}
	c.Flags().BoolVar(&pods, "pods", false, "look into the pods as well")
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
