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
	"github.com/berth-net/berth/internal/deletions"
	"github.com/berth-net/berth/internal/show"
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
and how many releases the ledger has; the exit code is then 1.`,
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
	list, err := a.askOwed(ctx)
	if errors.Is(err, client.ErrAway) {
		return a.owedAway(err)
	}
	if err != nil {
		return err
	}
	return a.print(list, func() { a.showOwed(list) })
}

// owedAway shows the queue of deletions without an agent. It fails all the same, since it
// cannot know what else is owed.
func (a *app) owedAway(away error) error {
	s, err := deletions.Look(a.dir())
	list := api.OwedList{Holds: []api.OwedHold{}, Deletions: show.Deletions(s, err)}
	waits := len(list.Deletions.Queued)+len(list.Deletions.Damaged) > 0
	err = a.print(list, func() {
		if waits {
			a.showOwed(list)
		}
		if n := a.lookAtLedger().Attachments["releasing"]; n > 0 {
			a.say("%s in the ledger (see `berth ledger`): the agent goes on when it starts\n", count(n, "release"))
		}
	})
	return errors.Join(away, err)
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
	heading := []string{"QUEUED", "NETWORK", "IFNAME", "FOR", "CUT-OFF"}
	if a.wide() {
		heading = append(heading, "HOST-VETH", "ADDRESSES", "NETNS", "FILE")
	}
	t := newTable(append(heading, "REASON")...)
	for _, q := range byPod(queued) {
		container, cut := q.ContainerID, cell{"no", red}
		if !a.wide() {
			container = shortID(container)
		}
		if q.Cut {
			cut = cell{"yes", green}
		}
		row := []any{cell{container, yellow}, q.Network, q.Ifname, a.ago(q.Written), cut}
		if a.wide() {
			row = append(row, q.Link, strings.Join(q.Addresses, ","), q.Netns, q.Name)
		}
		t.row(append(row, q.Reason)...)
	}
	return t
}

// byPod returns one deletion for each attachment: a runtime repeats a DEL, and each is queued.
// The one that it returns is the first, with the reason of the last. The attachment is cut off
// if any of them has cut it off.
func byPod(queued []api.QueuedDeletion) (all []api.QueuedDeletion) {
	queued = slices.Clone(queued)
	slices.SortStableFunc(queued, func(x, y api.QueuedDeletion) int { return x.Written.Compare(y.Written) })
	for _, q := range queued {
		same := func(o api.QueuedDeletion) bool {
			return o.Network == q.Network && o.ContainerID == q.ContainerID && o.Ifname == q.Ifname
		}
		if i := slices.IndexFunc(all, same); i >= 0 {
			all[i].Cut = all[i].Cut || q.Cut
			all[i].Reason = q.Reason
			continue
		}
		all = append(all, q)
	}
	return all
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

// owing returns the IDs of the owners that an argument names, as matching does, except by
// address or host veth.
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
