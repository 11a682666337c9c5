package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/berth-net/berth/api"
)

func (a *app) auditCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "audit",
		Short: "Look for what is left over or missing; exit code 0 exactly when nothing is",
		Long: `Have the agent compare its ledger with the node: what stands there with its stamp
and belongs to nobody, what somebody should have and has not, what differs, and
what is owed. The exit code is 0 exactly when there is none of it, 1 when there
is, and 2 when the audit cannot be made, such as when the agent is away.`,
		Example: `  berth audit
  berth audit -o json | jq '.findings[]'`,
		RunE: func(c *cobra.Command, _ []string) error { return a.audit(c.Context()) },
	}
}

func (a *app) audit(ctx context.Context) error {
	audit, err := a.askAudit(ctx)
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
		a.showFindings(audit.Findings)
		verdict = a.ink(red, count(len(audit.Findings), "finding"))
	}
	a.say("%s, %s audited: %s\n", count(audit.Owners, "owner"), count(audit.Holds, "hold"), verdict)
}

func (a *app) showFindings(findings []api.Finding) {
	t := newTable("FINDING", "KIND", "WHAT", "OWNER", "DETAIL")
	for _, f := range findings {
		t.row(cell{f.Type, red}, f.Kind, f.What, f.Owner, f.Detail)
	}
	a.table(t)
}
