package cli

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/api/client"
)

func (a *app) adoptCommand() *cobra.Command {
	var req api.AdoptRequest
	c := &cobra.Command{
		Use:   "adopt",
		Short: "Adopt the pods that the node's former CNI has attached",
		Long: `Adopt the pods that the node's former CNI has attached, as its runtime's cache
and Multus's files below /var/lib/cni tell. The pods keep their networks. Their
DELs are the agent's from now on: it executes the former CNI's plugins for them,
and tries again what fails. What is left of pods that are gone is given back at
once. The exit code is 1 if something could not be adopted; the rest is.`,
		Example: `  berth adopt --dry-run
  berth adopt
  berth adopt --bin-dir /opt/cni/bin --bin-dir /usr/libexec/cni`,
		RunE: func(c *cobra.Command, _ []string) error { return a.adopt(c.Context(), req) },
	}
	fl := c.Flags()
	fl.BoolVar(&req.DryRun, "dry-run", false, "only say what would be adopted")
	fl.StringArrayVar(&req.BinDirs, "bin-dir", nil, "folder of the former CNI's plugins (default /opt/cni/bin); repeatable")
	fl.StringArrayVar(&req.CNIDirs, "cni-dir", nil, "another folder in which Multus has kept files, its cniDir; repeatable")
	return c
}

func (a *app) adopt(ctx context.Context, req api.AdoptRequest) error {
	var found api.Adopted
	err := a.ask(ctx, func(ctx context.Context, c *client.Client) (err error) {
		found, err = c.Adopt(ctx, req)
		return err
	})
	if err != nil {
		return err
	}
	if err := a.print(found, func() { a.showAdopted(found, req.DryRun) }); err != nil {
		return err
	}
	if len(found.Problems) > 0 {
		return exit(1)
	}
	return nil
}

// showAdopted shows what an adoption has found, what could not be adopted, and what to do next.
func (a *app) showAdopted(found api.Adopted, dryRun bool) {
	news := 0
	t := newTable("ID", "RESULT", "OF", "INTERFACE", "NETWORK", "PLUGINS")
	for _, at := range found.Attachments {
		result := outcome(at.Outcome, dryRun)
		if at.Outcome != api.OutcomeKnown {
			news++
		}
		t.row(at.ID, result, subject(api.Attachment{Pod: at.Pod, ContainerID: at.ContainerID}), at.Ifname, at.Network, strings.Join(at.Plugins, ","))
	}
	switch {
	case len(found.Attachments) > 0:
		a.table(t)
	case len(found.Problems) == 0:
		a.none("nothing to adopt: no former CNI has left anything below /var/lib/cni")
	}
	for _, p := range found.Problems {
		a.say("%s\n", a.ink(red, "not adopted: "+p.Path+": "+p.Reason))
	}
	if len(found.Problems) > 0 {
		a.say("Nobody gives back what %s of: drain those pods, or mend what is wrong and repeat the command.\n", tellOf(len(found.Problems)))
	}
	switch {
	case news > 0 && dryRun:
		a.say("Nothing has changed. `berth adopt` adopts them.\n")
	case news > 0:
		a.say("Keep the plugins until these pods are gone: `berth attachments` lists them, as network and mode delegated; `berth owed` what fails.\n")
	}
}

func tellOf(problems int) string {
	if problems == 1 {
		return "this file tells"
	}
	return "these files tell"
}

// outcome is what became of an attachment, for people.
func outcome(o string, dryRun bool) cell {
	switch {
	case o == api.OutcomeKnown:
		return cell{text: "known already"}
	case o == api.OutcomeGone && dryRun:
		return cell{text: "would be given back: the pod is gone"}
	case o == api.OutcomeGone:
		return cell{"being given back: the pod is gone", yellow}
	case dryRun:
		return cell{text: "would be adopted"}
	}
	return cell{"adopted", green}
}
