package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/api/client"
	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/deletions"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/show"
	"github.com/berth-net/berth/internal/stamp"
)

func (a *app) owedCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "owed",
		Short: "List what the agent could not give back yet: since when, why, and how often it tried",
		Long: `List what is owed: holds whose release has failed, which the agent tries again
for ever, after growing pauses; deletions that the plugin left in the agent's
queue while the agent was away; and files in that queue that the agent cannot
read. What one pod owes does not keep other pods from coming or going, and no
other pod gets its addresses. If the agent is down, the command shows the queue
and how many releases the ledger has. If the agent hangs, it shows the queue
alone; the exit code is then 1.`,
		Example: `  berth owed
  berth owed -o wide
  berth owed -o json | jq '.holds[] | select(.tries > 10)'
  berth owed retry                   # all of it, now`,
		RunE: func(c *cobra.Command, _ []string) error { return a.owed(c.Context()) },
	}
	retry := &cobra.Command{
		Use:   "retry [ID|POD|CONTAINER...]",
		Short: "Have the agent try now, not later, to give back what is owed",
		Long: `Have the agent try now, not later, to give back what is owed: all of it, with
the queued deletions, or only what the given owners, pods or containers owe. The
command does not wait for the outcome: berth owed shows it, and berth events -f
shows each try that fails.`,
		Example: `  berth owed retry
  berth owed retry h4kq2mzt7c
  berth owed retry default/web && sleep 1 && berth owed`,
		Args:              usageArgs(cobra.ArbitraryArgs),
		ValidArgsFunction: a.completeOwed,
		RunE:              func(c *cobra.Command, args []string) error { return a.retryOwed(c.Context(), args) },
	}
	c.AddCommand(retry)
	return c
}

func (a *app) owed(ctx context.Context) error {
	short, cancel := context.WithTimeout(ctx, a.patience)
	defer cancel()
	list, err := a.askOwed(short)
	switch {
	case errors.Is(err, client.ErrAway):
		return a.owedAway()
	case ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
		return errors.Join(a.owedHangs(), err)
	case err != nil:
		return err
	}
	return a.print(list, func() { a.showOwed(list) })
}

// owedAway shows, while no agent answers, what is owed: the queue of deletions, and what the ledger has.
func (a *app) owedAway() error {
	a.none("berth: no agent answers; this is what its files say")
	list := a.queue()
	w := a.lookAtLedger(nil)
	releasing := w.Attachments[api.StateReleasing]
	return a.print(list, func() {
		if len(list.Deletions.Queued)+len(list.Deletions.Damaged) > 0 || list.Deletions.Error != "" || w.Error == "" && releasing == 0 {
			a.showOwed(list)
		}
		switch {
		case w.Error != "":
			a.none("berth: releases in the ledger are missing here: %s: %s", w.Ledger, w.Error)
		case releasing > 0:
			a.say("%s in the ledger (see `berth ledger`): the agent goes on when it starts\n", count(releasing, "release"))
		}
	})
}

// owedHangs shows the queue of deletions, which is all that can be known while the agent that has
// the ledger open does not answer.
func (a *app) owedHangs() error {
	list := a.queue()
	return a.print(list, func() {
		if len(list.Deletions.Queued)+len(list.Deletions.Damaged) > 0 || list.Deletions.Error != "" {
			a.showOwed(list)
		}
	})
}

// queue reads the queue of deletions without an agent, and the deletions' pods from the ledger.
func (a *app) queue() api.OwedList {
	pods := map[stamp.Key]*api.Pod{}
	if s, err := ledger.Read(a.dir().Ledger(), kinds); err == nil {
		for _, o := range s.Owners {
			if r, ok, err := attachment.Decode(o); ok && err == nil && r.Pod != nil {
				pods[r.Key] = r.Pod
			}
		}
	}
	s, err := deletions.Look(a.dir())
	return api.OwedList{Holds: []api.OwedHold{}, Deletions: show.Deletions(s, err, func(k stamp.Key) *api.Pod { return pods[k] })}
}

func (a *app) askOwed(ctx context.Context) (list api.OwedList, err error) {
	err = a.ask(ctx, func(ctx context.Context, c *client.Client) error {
		list, err = c.Owed(ctx)
		return err
	})
	return list, err
}

// showOwed prints a table for each sort of debt that there is, with an empty line between
// the tables.
func (a *app) showOwed(list api.OwedList) {
	var tables []*table
	if len(list.Holds) > 0 {
		tables = append(tables, a.owedTable(list.Holds))
	}
	if len(list.Deletions.Queued) > 0 {
		tables = append(tables, a.queuedTable(list.Deletions.Queued))
	}
	if len(list.Deletions.Damaged) > 0 {
		t := newTable("DAMAGED", "FOR", "ERROR")
		for _, d := range list.Deletions.Damaged {
			t.row(cell{d.Name, red}, a.ago(d.Since), d.Error)
		}
		tables = append(tables, t)
	}
	for i, t := range tables {
		if i > 0 {
			a.say("\n")
		}
		a.table(t)
	}
	if err := list.Deletions.Error; err != "" {
		a.none("berth: this list of queued deletions is incomplete: %s", oneLine(fmt.Errorf("%s", err)))
	} else if len(tables) == 0 {
		a.none("nothing is owed")
	}
}

func (a *app) owedTable(holds []api.OwedHold) *table {
	heading := []string{"OWNER", "OF", "OWED", "FOR", "TRIES", "NEXT"}
	if a.wide() {
		heading = append(heading, "KIND", "NETWORK", "CONTAINER", "IFNAME")
	}
	t := newTable(append(heading, "ERROR")...)
	for _, o := range holds {
		row := []any{o.Owner, owedBy(o), cell{o.What, red}, a.ago(o.Since), fmt.Sprint(o.Tries), a.next(o.Owed)}
		if a.wide() {
			row = append(row, o.Kind, o.Network, o.ContainerID, o.Ifname)
		}
		t.row(append(row, o.Error)...)
	}
	return t
}

func (a *app) queuedTable(queued []api.QueuedDeletion) *table {
	heading := []string{"QUEUED", "OF", "NETWORK", "IFNAME", "FOR", "CUT-OFF"}
	if a.wide() {
		heading = append(heading, "HOST-VETH", "ADDRESSES", "NETNS", "FILE")
	}
	t := newTable(append(heading, "REASON")...)
	for _, q := range show.ByAttachment(queued) {
		container, cut := q.ContainerID, cell{"no", red}
		if !a.wide() {
			container = shortID(container)
		}
		if q.Cut {
			cut = cell{"yes", green}
		}
		row := []any{cell{container, yellow}, podName(q.Pod), q.Network, q.Ifname, a.ago(q.Written), cut}
		if a.wide() {
			row = append(row, q.Link, strings.Join(q.Addresses, ","), q.Netns, q.Name)
		}
		t.row(append(row, q.Reason)...)
	}
	return t
}

// owedBy says who owes a hold.
func owedBy(o api.OwedHold) string {
	switch {
	case o.Network == "":
		return "the agent itself"
	case podName(o.Pod) != "":
		return podName(o.Pod)
	}
	return shortID(o.ContainerID)
}

// next says when a release is tried again.
func (a *app) next(o api.Owed) string {
	switch wait := o.Next.Sub(a.now()); {
	case o.Next.IsZero():
		return "never"
	case wait >= time.Second:
		return "in " + span(wait)
	}
	return "now"
}

// retryOwed has the agent try what the owners owe that args name; without args, all that is
// owed.
func (a *app) retryOwed(ctx context.Context, args []string) error {
	list, err := a.askOwed(ctx)
	if err != nil {
		return err
	}
	var ids []string
	for _, arg := range args {
		found := owing(list.Holds, arg)
		if len(found) == 0 {
			return fmt.Errorf("%.200q owes nothing; see `berth owed`", arg)
		}
		ids = append(ids, found...)
	}
	slices.Sort(ids)
	var tried api.Retried
	err = a.ask(ctx, func(ctx context.Context, c *client.Client) error {
		tried, err = c.RetryOwed(ctx, slices.Compact(ids)...)
		return err
	})
	if err != nil {
		return err
	}
	return a.print(tried, func() {
		a.say("%s and %s tried now; see `berth owed`\n", count(tried.Holds, "release"), count(tried.Deletions, "queued deletion"))
	})
}

// owing returns the IDs of the owners that an argument names. An argument can name an owner in all
// ways of matching but by address and by host veth.
func owing(holds []api.OwedHold, arg string) (ids []string) {
	owners := make([]api.Attachment, len(holds))
	for i, o := range holds {
		owners[i] = api.Attachment{ID: o.Owner, ContainerID: o.ContainerID, Pod: o.Pod}
	}
	for _, at := range matching(owners, arg) {
		ids = append(ids, at.ID)
	}
	return ids
}

// completeOwed completes arguments that name owners.
func (a *app) completeOwed(c *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if a.prepare(c, nil) != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	list, err := a.askOwed(context.Background())
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var words []cobra.Completion
	for _, o := range list.Holds {
		words = append(words, cobra.CompletionWithDesc(o.Owner, owedBy(o)+": "+o.What))
	}
	return words, cobra.ShellCompDirectiveNoFileComp
}
