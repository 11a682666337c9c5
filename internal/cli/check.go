package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-net/berth/api"
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
		Long: `Compare attachments with the node and with their pods: links, addresses, routes,
neighbours and settings as the kernel has them, on both sides. It also checks
what all pods rely on: the agent's table and their pools' routes. Each
difference is a row, and the exit code is 1 when there is one. berth audit also
looks for things that belong to no attachment.`,
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

// check checks the attachments that args name; without args, all.
func (a *app) check(ctx context.Context, args []string) error {
	list, err := a.list(ctx, api.Filter{})
	if err != nil {
		return err
	}
	chosen := list
	if len(args) > 0 {
		if chosen, err = a.choose(list, args); err != nil {
			return err
		}
	}
	audit, err := a.askAudit(ctx, true)
	if err != nil {
		return err
	}
	v := checkView{Checked: []string{}, Findings: []api.Finding{}}
	relevant := []string{"node"}
	for _, at := range unique(chosen) {
		v.Checked = append(v.Checked, at.ID)
		relevant = append(relevant, "pool "+at.Pool)
	}
	for _, f := range audit.Findings {
		// If a kind cannot be read, nothing is known of its holds.
		if slices.Contains(v.Checked, f.Owner) || slices.Contains(relevant, f.Of) || f.Owner == "" && f.Type == api.FindingUnreadable {
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

// showChecked prints one row for each difference.
func (a *app) showChecked(v checkView) {
	t := newTable("FINDING", "OF", "WHAT", "DIFFERENCE")
	n := 0
	for _, f := range v.Findings {
		differences := f.Differences
		if len(differences) == 0 {
			differences = []string{strings.TrimPrefix(f.Detail, f.What+": ")}
		}
		for _, d := range differences {
			t.row(cell{f.Type, red}, f.Of, f.What, d)
			n++
		}
	}
	differ := a.ink(green, "nothing differs")
	if n > 0 {
		a.table(t)
		differ = a.ink(red, count(n, "difference"))
	}
	a.say("%s checked: %s\n", count(len(v.Checked), "attachment"), differ)
}
