package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/api/client"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/misspelt"
)

type gcFlags struct {
	network string
	keep    []string
	all     bool
	minAge  time.Duration
	dryRun  bool
}

// gcView is what `berth gc -o json` prints.
type gcView struct {
	Network  string        `json:"network"`
	DryRun   bool          `json:"dryRun"`
	Released []releaseView `json:"released"` // with DryRun, the attachments that would be released
	Owed     int           `json:"owed"`     // holds of the network whose release has failed so far
}

func (a *app) gcCommand() *cobra.Command {
	var f gcFlags
	c := &cobra.Command{
		Use:   "gc --network NAME --keep ID... | --all",
		Short: "Release all of a network's attachments but those to keep, as a runtime's GC does",
		Long: `Release all of a network's attachments but those to keep, as a runtime's GC does
(CNI 1.1). It tries to release all of them, even if some fail, and tries again
what earlier releases in the network still owe. Name an attachment to keep by
its ID, pod, container id, address or host veth. GC spares attachments that were
made after it began.`,
		Example: `  berth gc --network berth --keep default/web,default/db --dry-run
  berth gc --network berth --keep h4kq2mzt7c --keep 4f1c9a7d2b60
  berth gc --network berth --all --min-age 1h`,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) > 0:
				return fmt.Errorf("%.200q: name what to keep with --keep", args[0])
			case f.network == "":
				return errors.New("--network is missing")
			case f.all == (len(f.keep) > 0):
				return errors.New("give attachments to --keep, or --all to keep none")
			case f.minAge < 0:
				return fmt.Errorf("--min-age %v is negative", f.minAge)
			}
			if e := cni.CheckNetworkName(f.network); e != nil {
				return fmt.Errorf("--network: %s", e.Details)
			}
			return nil
		},
		RunE: func(c *cobra.Command, _ []string) error { return a.gc(c.Context(), f) },
	}
	fl := c.Flags()
	fl.StringVar(&f.network, "network", "", "the CNI network's name")
	fl.StringSliceVar(&f.keep, "keep", nil, "attachments to keep; repeatable, or with commas")
	fl.BoolVar(&f.all, "all", false, "keep none")
	fl.DurationVar(&f.minAge, "min-age", 0, "also keep attachments younger than this, such as 10m")
	fl.BoolVar(&f.dryRun, "dry-run", false, "only say what would be released")
	return c
}

func (a *app) gc(ctx context.Context, f gcFlags) error {
	began := client.Began(ctx) // spares attachments that are made after the list was asked for
	list, err := a.list(ctx, api.Filter{Network: f.network})
	if err != nil {
		return err
	}
	keep, err := a.choose(list, f.keep)
	if err != nil {
		return err // rather than release an attachment that was to be kept
	}
	req := api.GCRequest{Network: f.network, Valid: []api.GCValid{}, MinAge: f.minAge, DryRun: f.dryRun}
	for _, at := range keep {
		req.Valid = append(req.Valid, api.GCValid{ContainerID: at.ContainerID, Ifname: at.Ifname})
	}
	v := gcView{Network: f.network, DryRun: f.dryRun, Released: []releaseView{}}
	err = a.ask(began, func(ctx context.Context, c *client.Client) error {
		d, err := c.GC(ctx, req)
		if err != nil {
			return err
		}
		v.Owed = d.Owed
		v.Released, err = released(ctx, c, chosen(list, d.IDs))
		return err
	})
	if err != nil {
		return err
	}
	var known []string // the names of the other networks, if this network has nothing
	if len(list)+len(v.Released) == 0 {
		if known, err = a.networks(ctx); err != nil {
			return err
		}
	}
	return a.print(v, func() { a.showGC(v, known) })
}

// networks returns the names of the networks that have attachments, never nil.
func (a *app) networks(ctx context.Context) ([]string, error) {
	list, err := a.list(ctx, api.Filter{})
	names := map[string]bool{}
	for _, at := range list {
		names[at.Network] = true
	}
	return slices.AppendSeq([]string{}, maps.Keys(names)), err
}

// chosen returns the attachments of a list that have one of these ids. For each other id, chosen
// adds an attachment of which only the id is known: its ADD was under way.
func chosen(list []api.Attachment, ids []string) (all []api.Attachment) {
	for _, at := range list {
		if slices.Contains(ids, at.ID) {
			all = append(all, at)
		}
	}
	for _, id := range ids {
		if !slices.ContainsFunc(list, func(at api.Attachment) bool { return at.ID == id }) {
			all = append(all, api.Attachment{ID: id})
		}
	}
	return all
}

// showGC shows what a GC has released. If v's network has no attachments, known lists the networks
// that have some; otherwise known is nil.
func (a *app) showGC(v gcView, known []string) {
	slices.Sort(known)
	switch {
	case known != nil && len(known) == 0:
		a.none("nothing to release: nothing is attached, in network %s or any other", v.Network)
	case known != nil:
		a.none("nothing to release: the agent knows no network %s, only %s%s", v.Network, strings.Join(known, ", "), misspelt.Meant(v.Network, known))
	case len(v.Released) == 0:
		a.none("nothing to release in network %s", v.Network)
	default:
		a.showReleased(v.Released, v.DryRun)
	}
	if v.Owed > 0 {
		a.say("%s\n", a.ink(red, count(v.Owed, "release")+" of the network failed so far, and the agent tries again; see `berth owed`"))
	}
}
