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
)

// statusView is what `berth status -o json` prints: the agent's own status, or, if there is
// none, why, and what is known without the agent.
type statusView struct {
	Serving bool   `json:"serving"`         // the agent serves requests
	Error   string `json:"error,omitempty"` // why the agent does not serve, or why it cannot attach pods
	*api.Status
	Away *awayView `json:"away,omitempty"` // when no agent answers
}

func (a *app) statusCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show how the agent is; exit code 0 exactly when it serves requests",
		Long: `Show how the agent is: what is attached, what is owed, how full the pools are.
If no agent answers within 3 seconds, the command reads the ledger itself, and
shows what the ledger has and what to do. The exit code is 0 exactly when the
agent serves requests, and 1 while the agent still restores what its ledger
says, or is away.`,
		Example: `  berth status
  berth --root /tmp/a status -o json | jq .owed
  until berth status >/dev/null 2>&1; do sleep 0.1; done    # wait for the agent`,
		RunE: func(c *cobra.Command, _ []string) error { return a.status(c.Context()) },
	}
}

func (a *app) status(ctx context.Context) error {
	v := statusView{}
	err := a.ask(ctx, func(ctx context.Context, c *client.Client) error {
		// The request tells the agent no deadline: if the agent refused the request for being late,
		// the agent's answer would not say why the request was late.
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		defer time.AfterFunc(a.patience, func() { cancel(context.DeadlineExceeded) }).Stop()
		st, err := c.Status(ctx, "")
		if err != nil && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		var cannot *api.Error
		if err != nil && (!errors.As(err, &cannot) || st.PID == 0) {
			return err
		}
		v.Status, v.Serving = &st, !st.Restoring
		if cannot != nil {
			v.Error = cannot.Error()
		}
		return nil
	})
	switch {
	case errors.Is(err, client.ErrAway):
		away := a.look()
		v.Error, v.Away = oneLine(err), &away
	case ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
		away := a.look()
		away.Next = "the agent hangs: look at its log (journalctl -u berthd), and restart it"
		v.Error, v.Away = fmt.Sprintf("the agent does not answer within %s", a.patience), &away
	case err != nil:
		return err
	}
	if err := a.print(v, func() { a.showStatus(v) }); err != nil {
		return err
	}
	if !v.Serving {
		return exit(1)
	}
	return nil
}

func (a *app) showStatus(v statusView) {
	if v.Away != nil {
		a.showAway(v)
		return
	}
	state := a.ink(green, "serving")
	if v.Restoring {
		state = a.ink(yellow, "restoring") + " what its ledger says; requests wait"
	}
	a.fact("berthd", "%s, version %s, pid %d, started %s ago", state, v.Version, v.PID, a.ago(v.Started))
	a.fact("root", "%s, instance %s", v.Root, v.Instance)
	a.fact("attachments", "%s", a.stateCounts(v.Attachments))
	owed := "nothing"
	if v.Owed > 0 {
		owed = a.ink(red, fmt.Sprintf("%s, tried again and again; see `berth owed`", count(v.Owed, "release")))
	}
	a.fact("owed", "%s", owed)
	a.showDeletions(v.Deletions, v.Attachments)
	if trouble := historyTrouble(v.History); trouble != "" {
		a.fact("history", "%s", a.ink(yellow, trouble))
	}
	if len(v.Lacks) > 0 {
		a.fact("kernel lacks", "%s of the nftables table; see `berth audit`", a.ink(red, strings.Join(v.Lacks, ", ")))
	}
	if v.Displaced != "" {
		a.fact("ledger", "%s", a.ink(red, v.Displaced))
		a.fact("next", "move the ledger's file back, if somebody moved it, or restart berthd, which says what to do")
	}
	if v.Refused != "" {
		a.fact("config", "%s", a.ink(red, "refused, and the former one is in force: "+v.Refused))
	}
	for _, o := range v.Overlaps {
		a.fact("overlaps", "%s", a.ink(red, o))
	}
	a.showCluster(v.Cluster)
	if v.Error != "" {
		a.fact("cannot", "%s", a.ink(red, "attach pods: "+v.Error))
	}
	for _, p := range v.Pools {
		if p.Exhausted != "" {
			a.fact("exhausted", "%s", a.ink(red, p.Exhausted))
		}
	}
	a.say("\n")
	a.showPools(v.Pools)
}

// showCluster says what is wrong with the node's part of its cluster.
func (a *app) showCluster(c *api.ClusterStatus) {
	if c == nil {
		return
	}
	if c.Lacks != "" {
		a.fact("addresses", "%s", a.ink(red, c.Lacks))
	}
	for _, f := range c.Failures {
		a.fact("cluster", "%s", a.ink(yellow, f))
	}
	for _, n := range c.Unrouted {
		a.fact("no way to", "%s", a.ink(red, "pods of node "+n.Node+": "+n.Reason))
	}
	if more := c.UnroutedNodes - len(c.Unrouted); more > 0 {
		a.fact("no way to", "%s", a.ink(red, "pods of "+count(more, "more node")))
	}
	if lost := c.Events[api.ClusterEventRefused] + c.Events[api.ClusterEventDropped]; lost > 0 {
		a.fact("events", "%s", a.ink(yellow, fmt.Sprintf("%s of the node lost: the cluster's API server refused them, or could not take them for too long", count(int(lost), "Event"))))
	}
}

// historyTrouble says what the history lacks, and why it cannot be written; "": nothing is wrong with it.
func historyTrouble(h api.HistoryCount) string {
	lost := count(int(h.Lost), "record") + " lost"
	switch {
	case h.Lost > 0 && h.Error != "":
		return lost + ": " + h.Error
	case h.Lost > 0:
		return lost
	case h.Error != "":
		return "nothing is lost yet, and the agent tries again: " + h.Error
	}
	return ""
}

// fewSpares is the number of spare files below which the agent refuses to attach pods, if
// it cannot make more. On a node of more pods than that, it is the number of attached pods.
const fewSpares = 64

// showDeletions says what waits in the plugin's queue, if anything does.
func (a *app) showDeletions(n api.DeletionCount, pods map[string]int) {
	var parts []string
	if n.Attachments > 0 {
		parts = append(parts, a.ink(yellow, a.queuedFor(n)), a.cutOff(n))
	}
	if n.Damaged > 0 {
		parts = append(parts, a.ink(red, fmt.Sprintf("%d damaged, set aside", n.Damaged)))
	}
	if n.Error != "" {
		parts = append(parts, a.ink(red, "this count is incomplete: "+oneLine(errors.New(n.Error))))
	}
	if len(parts) > 0 {
		a.fact("deletions", "%s; see `berth owed`", strings.Join(parts, ", "))
	}
	a.showSpares(n, pods)
}

// queuedFor says how many attachments the queued deletions are of, as `berth owed` lists them. The
// deletions' files can be more, because a runtime repeats a DEL, and each DEL is a file.
func (a *app) queuedFor(n api.DeletionCount) string {
	return fmt.Sprintf("of %s queued for the agent", count(n.Attachments, "attachment"))
}

// cutOff says whether these attachments are cut off.
func (a *app) cutOff(n api.DeletionCount) string {
	if n.Uncut > 0 {
		return a.ink(red, fmt.Sprintf("%d of them not cut off", n.Uncut))
	}
	return "cut off"
}

// showSpares says how many deletions have room on a full disk, if they are few for the pods, which are
// counted by state.
func (a *app) showSpares(n api.DeletionCount, pods map[string]int) {
	switch {
	case n.Spares >= max(fewSpares, pods[api.StateAttached]):
	case n.Filling:
		a.fact("spare files", "being made: room for %s on a full disk so far", count(n.Spares, "deletion"))
	default:
		a.fact("spare files", "%s", a.ink(yellow, fmt.Sprintf("room for %s on a full disk", count(n.Spares, "deletion"))))
	}
}
