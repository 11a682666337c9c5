package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/agent"
	"github.com/berth-net/berth/internal/rebuild"
)

// rebuildLedger makes a lost ledger anew, and prints what is in the new one and what is lost.
func rebuildLedger(ctx context.Context, o agent.Options) error {
	made, err := agent.RebuildLedger(ctx, o)
	if err != nil {
		return err
	}
	return show(os.Stdout, made)
}

// show prints a table of what was rebuilt.
func show(w io.Writer, made *rebuild.Rebuilt) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "ID\tSTATE\tNETWORK/CONTAINER/INTERFACE\tPOOL\tADDRESSES\tNETNS\tLOST")
	for _, p := range made.Pods {
		state := api.StateAttached
		if !p.Owner.Wanted() {
			state = api.StateReleasing
		}
		addrs := make([]string, len(p.Addresses))
		for i, a := range p.Addresses {
			addrs[i] = a.String()
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", p.Owner.ID, state, p.Record.Key, or(p.Record.Pool),
			or(strings.Join(addrs, ",")), or(p.Record.Netns.Path), or(strings.Join(p.Lost, "; ")))
	}
	fmt.Fprintf(t, "\nAttachments adopted: %d.", len(made.Pods))
	if !made.Until.IsZero() {
		fmt.Fprintf(t, " The agent gives out no other address until %s.", made.Until.UTC().Format(time.RFC3339))
	}
	fmt.Fprintln(t, " Lost:")
	for _, lost := range made.Lost {
		fmt.Fprintln(t, "  "+lost)
	}
	if made.Kept != "" {
		fmt.Fprintln(t, "berthd kept the former ledger as "+made.Kept)
	}
	return t.Flush()
}

func or(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
