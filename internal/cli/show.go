package cli

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-net/berth/api"
)

func (a *app) showCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show ID|POD|CONTAINER|IP",
		Short: "Show everything that is known about an attachment",
		Long: `Show everything known about the attachment with this ID, pod (NAMESPACE/NAME or
NAME), container id, address or host veth. The beginning of an ID or a container
id is enough. If the argument names several attachments, the command lists them
and the exit code is 1.`,
		Example: `  berth show 10.88.0.7
  berth show default/web
  berth show 4f1c9a -o json`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeAttachments,
		RunE:              func(c *cobra.Command, args []string) error { return a.show(c.Context(), args[0]) },
	}
}

func (a *app) show(ctx context.Context, arg string) error {
	list, err := a.list(ctx, api.Filter{})
	if err != nil {
		return err
	}
	found := matching(list, arg)
	switch len(found) {
	case 0:
		return unknown(arg)
	case 1:
		return a.print(found[0], func() { a.showOne(found[0]) })
	}
	return a.ambiguous(arg, found)
}

func (a *app) showOne(at api.Attachment) {
	a.fact("attachment", "%s", at.ID)
	state := stateCell(at.State)
	a.fact("state", "%s", a.ink(state.ink, state.text))
	if p := at.Pod; p != nil {
		a.fact("pod", "%s", podName(p))
		if p.UID != "" {
			a.fact("uid", "%s", p.UID)
		}
	}
	a.fact("container", "%s", at.ContainerID)
	a.fact("network", "%s, pool %s, mode %s", at.Network, at.Pool, at.Mode)
	a.fact("addresses", "%s", strings.Join(at.Addresses, ", "))
	a.fact("interface", "%s, MAC %s, MTU %d, in %s", at.Ifname, at.MAC, at.MTU, at.Netns)
	a.fact("host veth", "%s", at.HostVeth)
	a.fact("created", "%s, %s ago", at.Created.UTC().Format(time.RFC3339), a.ago(at.Created))
	if at.Releasing != nil {
		a.fact("releasing", "since %s, %s ago", at.Releasing.UTC().Format(time.RFC3339), a.ago(*at.Releasing))
	}
	for _, o := range at.Owed {
		a.fact("owed", "%s", a.ink(red, a.owedText(o)))
	}
}

// owedText describes a hold that could not be given back so far.
func (a *app) owedText(o api.Owed) string {
	return o.What + " for " + a.ago(o.Since) + ", tried " + count(o.Tries, "time") + ", next " + a.next(o) + ": " + o.Error
}
