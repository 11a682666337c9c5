package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/api/client"
	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kinds/delegate"
	"github.com/berth-net/berth/internal/kinds/deviceinfo"
	"github.com/berth-net/berth/internal/kinds/flows"
	"github.com/berth-net/berth/internal/kinds/hostports"
	"github.com/berth-net/berth/internal/kinds/link"
	"github.com/berth-net/berth/internal/kinds/noderoute"
	"github.com/berth-net/berth/internal/kinds/podgateway"
	"github.com/berth-net/berth/internal/kinds/podstatus"
	"github.com/berth-net/berth/internal/kinds/poolroute"
	"github.com/berth-net/berth/internal/kinds/shaping"
	nfttable "github.com/berth-net/berth/internal/kinds/table"
	"github.com/berth-net/berth/internal/kinds/vxlan"
	"github.com/berth-net/berth/internal/kinds/wireguard"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/show"
)

// kinds are the kinds whose specs this program can read. It shows the specs of other kinds as the
// ledger has them.
var kinds = hold.Kinds{
	{New: func() hold.Spec { return new(nfttable.Spec) }},
	{New: func() hold.Spec { return new(poolroute.Spec) }},
	{New: func() hold.Spec { return new(vxlan.Device) }},
	{New: func() hold.Spec { return new(vxlan.Peer) }},
	{New: func() hold.Spec { return new(wireguard.Device) }},
	{New: func() hold.Spec { return new(wireguard.Peer) }},
	{New: func() hold.Spec { return new(noderoute.Spec) }},
	{New: func() hold.Spec { return new(link.Spec) }},
	{New: func() hold.Spec { return new(flows.Spec) }},
	{New: func() hold.Spec { return new(hostports.Spec) }},
	{New: func() hold.Spec { return new(shaping.Spec) }},
	{New: func() hold.Spec { return new(delegate.Spec) }},
	{New: func() hold.Spec { return new(podgateway.Spec) }},
	{New: func() hold.Spec { return new(delegate.IPAM) }},
	{New: func() hold.Spec { return new(delegate.Lease) }},
	{New: func() hold.Spec { return new(deviceinfo.Spec) }},
	{New: func() hold.Spec { return new(podstatus.Spec) }},
}

func (a *app) ledgerCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "ledger",
		Short: "Print the ledger: which owner has which names and holds; works without the agent, too",
		Long: `Print the ledger: every owner with its names and holds, the names that rest, and
the keys that were deleted lately. If no agent answers, the command reads the
ledger's file itself, and writes nothing.`,
		Example: `  berth ledger
  berth ledger -o json | jq '.owners[] | select(.releasing)'`,
		RunE: func(c *cobra.Command, _ []string) error { return a.ledger(c.Context()) },
	}
}

func (a *app) ledger(ctx context.Context) error {
	var l api.Ledger
	from := "the agent"
	err := a.ask(ctx, func(ctx context.Context, c *client.Client) (err error) {
		l, err = c.Ledger(ctx)
		return err
	})
	if errors.Is(err, client.ErrAway) {
		from = a.dir().Ledger()
		l, err = a.readLedger()
	}
	if err != nil {
		return err
	}
	owners := make([]hold.Owner, len(l.Owners))
	for i, raw := range l.Owners {
		if owners[i], err = kinds.Decode(raw); err != nil {
			return fmt.Errorf("reading the ledger: %w", err)
		}
	}
	return a.print(l, func() { a.showLedger(from, l, owners) })
}

// readLedger reads the ledger's file, if no agent has it open.
func (a *app) readLedger() (api.Ledger, error) {
	s, err := ledger.Read(a.dir().Ledger(), kinds)
	if errors.Is(err, ledger.ErrLocked) {
		return api.Ledger{}, fmt.Errorf("%w: an agent is starting or hangs; try again", err)
	}
	if err != nil {
		return api.Ledger{}, fmt.Errorf("no agent answers, and %w", err)
	}
	return show.Ledger(*s), nil
}

func (a *app) showLedger(from string, l api.Ledger, owners []hold.Owner) {
	a.fact("ledger", "schema %d, from %s", l.Schema, from)
	a.fact("epoch", "boot %s, network namespace %d", l.Epoch.Boot, l.Epoch.Netns.Ino)
	a.say("\n%s\n", count(len(owners), "owner"))
	if len(owners) > 0 {
		a.table(a.ownersTable(owners))
	}
	a.say("\n%s given back lately\n", count(len(l.Resting), "name"))
	if len(l.Resting) > 0 {
		t := newTable("NAME", "FREED", "RESTS")
		for _, r := range l.Resting {
			rests := "no more"
			if left := r.Until.Sub(a.now()); left > 0 {
				rests = "for " + span(left+time.Second)
			}
			t.row(r.Space+":"+r.Name, a.ago(r.Freed)+" ago", rests)
		}
		a.table(t)
	}
	a.say("\n%s deleted lately, as network/container/interface\n", count(len(l.Tombstones), "key"))
	if len(l.Tombstones) > 0 {
		t := newTable("KEY", "BOOT")
		for _, s := range l.Tombstones {
			t.row(s.Key, s.Boot)
		}
		a.table(t)
	}
}

func (a *app) ownersTable(owners []hold.Owner) *table {
	t := newTable("ID", "STATE", "OF", "NAMES", "HOLDS")
	for _, o := range owners {
		state := cell{"wanted", green}
		if !o.Wanted() {
			state = cell{"releasing for " + a.ago(o.Releasing), yellow}
		}
		of := "the agent itself"
		if r, ok, err := attachment.Decode(o); ok && err == nil {
			key := r.Key
			if !a.wide() {
				key.ContainerID = shortID(key.ContainerID)
			}
			of = strings.TrimSpace(podName(r.Pod) + " " + key.String())
		} else if lead := o.Lead(); lead != "" {
			of = "attachment " + string(lead)
		}
		var names, holds []string
		for _, n := range o.Names {
			names = append(names, n.String())
		}
		for _, h := range o.Holds {
			holds = append(holds, h.Spec.String())
		}
		t.row(string(o.ID), state, of, strings.Join(names, " "), strings.Join(holds, "; "))
	}
	return t
}
