package cli

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/api/client"
)

// checkView is what `berth check -o json` prints.
type checkView struct {
	Checked  []string      `json:"checked"` // attachments' IDs
	Findings []api.Finding `json:"findings"`
}

func (a *app) checkCommand() *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use:   "check ID|POD|CONTAINER... | --all",
		Short: "Compare attachments with the node; exit code 1 when something differs",
		Long: `Compare attachments with the node: links, addresses and routes as the kernel has
them. The exit code is 1 when something differs. berth audit also looks for what
belongs to no attachment.`,
		Example: `  berth check default/web
  berth check --all`,
		ValidArgsFunction: a.completeAttachments,
		Args: func(_ *cobra.Command, args []string) error {
			if all == (len(args) > 0) {
				return fmt.Errorf("give attachments to check, or --all")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error { return a.check(c.Context(), args) },
	}
	c.Flags().BoolVar(&all, "all", false, "check all attachments")
	return c
}

// check checks what args name; all without any.
func (a *app) check(ctx context.Context, args []string) error {
	list, err := a.list(ctx, api.Filter{})
	if err != nil {
		return err
	}
	chosen := list
	if len(args) > 0 {
		chosen = nil
	}
	for _, arg := range args {
		found, err := a.choose(list, arg)
		if err != nil {
			return err
		}
		chosen = append(chosen, found...)
	}
	audit, err := a.askAudit(ctx)
	if err != nil {
		return err
	}
	v := checkView{Checked: []string{}, Findings: []api.Finding{}}
	for _, at := range unique(chosen) {
		v.Checked = append(v.Checked, at.ID)
	}
	for _, f := range audit.Findings {
		// A kind that cannot be read says nothing of its holds.
		if slices.Contains(v.Checked, f.Owner) || f.Owner == "" && f.Type == "unreadable" {
			v.Findings = append(v.Findings, f)
		}
	}
	if err := a.print(v, func() { a.showChecked(v) }); err != nil {
		return err
	}
	if len(v.Findings) > 0 {
		return exit(1)
	}
	return nil
}

func (a *app) showChecked(v checkView) {
	if len(v.Findings) > 0 {
		a.showFindings(v.Findings)
	}
	differ := a.ink(green, "nothing differs")
	if len(v.Findings) > 0 {
		differ = a.ink(red, count(len(v.Findings), "difference"))
	}
	a.say("%s checked: %s\n", count(len(v.Checked), "attachment"), differ)
}

func (a *app) askAudit(ctx context.Context) (audit api.Audit, err error) {
	err = a.ask(ctx, func(ctx context.Context, c *client.Client) error {
		audit, err = c.Audit(ctx)
		return err
	})
	return audit, err
}
