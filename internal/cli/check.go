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
	Probes   []probed      `json:"probes,omitempty"`
}

func (a *app) checkCommand() *cobra.Command {
	var all bool
	var with probing
	c := &cobra.Command{
		Use:   "check ID|POD|CONTAINER... | --all",
		Short: "Compare attachments with the node; exit code 1 when something differs",
		Long: `Compare attachments with the node and with their pods: links, addresses, routes,
neighbours and settings as the kernel has them, on both sides. It also checks
what all pods rely on: the agent's table and their pools' routes. Each
difference is a row, and the exit code is 1 when there is one. berth audit also
looks for things that belong to no attachment.

With --probe packets are sent, too: from the node to the pod, and from inside the
pod to itself, to the node, to another pod of the node and out, to the default
gateway or to the address of --to. Each is a row, which says what came back or
where the packet got lost: which chain of whose table dropped it, or why the node
or the pod does not route it. The exit code is also 1 when a step fails. A missing
echo reply (unknown) does not make the exit code 1, because the peer may not answer
echoes. This needs root, in the agent's network namespace, and leaves nothing
behind. nftables tells where packets are, from Linux 5.12 on.`,
		Example: `  berth check default/web
  berth check --all
  berth check --probe default/web
  berth check --probe default/web --to 192.0.2.53:53     # by TCP; without a port by an echo`,
		ValidArgsFunction: a.completeAttachments,
		Args: func(_ *cobra.Command, args []string) error {
			if all == (len(args) > 0) {
				return fmt.Errorf("give attachments to check, or --all")
			}
			return with.valid()
		},
		RunE: func(c *cobra.Command, args []string) error {
			if !with.on {
				return a.check(c.Context(), args, with)
			}
			return a.hangs(c.Context(), func(ctx context.Context) error { return a.check(ctx, args, with) })
		},
	}
	with.flags(c)
	c.Flags().BoolVar(&all, "all", false, "check all attachments")
	return c
}

// check checks the attachments that args name; without args, all.
func (a *app) check(ctx context.Context, args []string, with probing) error {
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
	if with.on {
		if v.Probes, err = with.probe(ctx, unique(chosen), list); err != nil {
			return err
		}
	}
	if err := a.print(v, func() { a.showChecked(v); a.showProbes(v.Probes) }); err != nil {
		return err
	}
	if len(v.Findings) > 0 || slices.ContainsFunc(v.Probes, probed.failed) {
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
