package cli

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/api/client"
)

func (a *app) showCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show ID|POD|CONTAINER|IP",
		Short: "Show everything that is known about an attachment",
		Long: `Show everything known about the attachment with this ID, pod (NAMESPACE/NAME or
NAME), container id, address or host veth. The beginning of an ID or a container
id is enough. If the argument names several attachments, the command lists them
and the exit code is 1. If no present attachment matches, or no agent answers,
the command shows what berth history has of the last attachment that matches.`,
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
	if errors.Is(err, client.ErrAway) {
		return a.showGone(ctx, arg)
	}
	if err != nil {
		return err
	}
	found := matching(list, arg)
	switch len(found) {
	case 0:
		return a.showGone(ctx, arg)
	case 1:
		return a.print(found[0], func() { a.showOne(found[0]) })
	}
	return a.ambiguous(arg, found)
}

// showGone shows, from the history, the last attachment that an argument named.
func (a *app) showGone(ctx context.Context, arg string) error {
	list, err := a.pasts(ctx, api.PastFilter{})
	if err != nil {
		return err
	}
	found := matchingPast(list, arg)
	if len(found) == 0 {
		return notInHistory(arg)
	}
	if n := len(found) - 1; n > 0 {
		a.none("berth: %s earlier; see `berth history %s`", count(n, "attachment"), arg)
	}
	return a.print(found[0], func() { a.showPast(found[0]) })
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
	for _, p := range at.HostPorts {
		a.fact("host port", "%s", p)
	}
	if b := at.Bandwidth; b != nil {
		a.fact("bandwidth", "to the pod %s; from it %s", rate(b.IngressRate, b.IngressBurst), rate(b.EgressRate, b.EgressBurst))
	}
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

// rate shows a limit, given as bits a second and bits.
func rate(bits, burst uint64) string {
	if bits == 0 {
		return "no limit"
	}
	return fmt.Sprintf("%sbit/s, burst %sbit", thousands(bits), about(burst))
}

// thousands shortens a number that is a multiple of a power of 1,000: 1500000 is "1500 k".
func thousands(n uint64) string {
	unit := 0
	for n > 0 && n%1000 == 0 && unit < len("kMGTP") {
		n, unit = n/1000, unit+1
	}
	return fmt.Sprint(n, " ", ("kMGTP")[:unit][max(unit-1, 0):])
}

// about rounds a number to a tenth of a power of 1,000: 4294967288 is "4.3 G". Runtimes choose
// bursts, and nobody needs to know a burst to the last bit.
func about(n uint64) string {
	v, unit := float64(n), 0
	for v >= 1000 {
		v, unit = v/1000, unit+1
	}
	return strconv.FormatFloat(math.Round(10*v)/10, 'f', -1, 64) + " " + ("kMGTPE")[:unit][max(unit-1, 0):]
}

// owedText describes a hold that could not be given back so far.
func (a *app) owedText(o api.Owed) string {
	return o.What + " for " + a.ago(o.Since) + ", tried " + count(o.Tries, "time") + ", next " + a.next(o) + ": " + o.Error
}
