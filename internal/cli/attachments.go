package cli

import (
	"context"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/api/client"
)

func (a *app) attachmentsCommand() *cobra.Command {
	var f api.Filter
	c := &cobra.Command{
		Use:     "attachments",
		Aliases: []string{"at"},
		Short:   "List the attachments, including those that the agent is still releasing",
		Example: `  berth attachments
  berth at -o wide --namespace default
  berth at --pod default/web
  berth at --state owed -o json`,
		RunE: func(c *cobra.Command, _ []string) error { return a.attachments(c.Context(), f) },
	}
	fl := c.Flags()
	fl.StringVar(&f.Network, "network", "", "only those of the CNI network with this name")
	fl.StringVar(&f.Container, "container", "", "only those of the container (or pod sandbox) with this id, or the beginning of one")
	fl.StringVar(&f.Namespace, "namespace", "", "only those of pods in this namespace")
	fl.StringVar(&f.Pod, "pod", "", "only those of the pod with this name, or NAMESPACE/NAME")
	fl.StringVar(&f.Address, "address", "", "only those with this address")
	fl.StringVar(&f.State, "state", "", "only those in this state: "+strings.Join(api.States(), ", "))
	mustComplete(c.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(api.States(), cobra.ShellCompDirectiveNoFileComp)))
	return c
}

func (a *app) attachments(ctx context.Context, f api.Filter) error {
	splitPod(&f)
	container := f.Container // the agent knows containers by their full ids only
	f.Container = ""
	list, err := a.list(ctx, f)
	if err == nil && container != "" {
		list, err = ofContainer(list, container)
	}
	if err != nil {
		return err
	}
	return a.print(list, func() {
		if len(list) == 0 {
			a.none("no attachments")
			return
		}
		a.showList(list)
	})
}

// splitPod reads a pod that is given as NAMESPACE/NAME.
func splitPod(f *api.Filter) {
	if namespace, name, found := strings.Cut(f.Pod, "/"); found && f.Namespace == "" {
		f.Namespace, f.Pod = namespace, name
	}
}

// list asks the agent for attachments.
func (a *app) list(ctx context.Context, f api.Filter) (list []api.Attachment, err error) {
	err = a.ask(ctx, func(ctx context.Context, c *client.Client) error {
		list, err = c.List(ctx, f)
		return err
	})
	return list, err
}

func (a *app) showList(list []api.Attachment) {
	heading := []string{"ID", "STATE", "NETWORK", "POD", "CONTAINER", "IFNAME", "ADDRESSES", "AGE"}
	if a.wide() {
		heading = append(heading, "POOL", "MODE", "MAC", "MTU", "HOST-PORTS", "HOST-VETH", "NETNS")
	}
	t := newTable(heading...)
	for _, at := range list {
		container := at.ContainerID
		if !a.wide() {
			container = shortID(container)
		}
		row := []any{at.ID, stateCell(at.State), at.Network, podName(at.Pod), container, at.Ifname, strings.Join(at.Addresses, ","), a.ago(at.Created)}
		if a.wide() {
			row = append(row, at.Pool, at.Mode, at.MAC, strconv.Itoa(at.MTU), strings.Join(at.HostPorts, ","), at.HostVeth, at.Netns)
		}
		t.row(row...)
	}
	a.table(t)
}

// sameAddress reports whether text is an address, and one of list.
func sameAddress(text string, list []string) bool {
	ip, err := netip.ParseAddr(text)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(list, func(s string) bool {
		have, err := netip.ParseAddr(s)
		return err == nil && have == ip.Unmap()
	})
}
