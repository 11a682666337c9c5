package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/bundle"
)

type bundleFlags struct {
	places
	output string // a file, or "-"
}

func (a *app) bundleCommand() *cobra.Command {
	var f bundleFlags
	c := &cobra.Command{
		Use:   "bundle [-o FILE]",
		Short: "Gather what a bug report needs into one file, without secrets",
		Long: `Gather what a bug report needs into one file: versions, configuration, status,
attachments, what is owed, events, audit, doctor, metrics, the ledger, what the
kernel has, and the agent's log. A part that fails or takes too long leaves
NAME.error with the reason. It works without the agent.

The bundle has pods' names, container ids, addresses and MACs. It has no
environment, token, certificate or kubeconfig: the command reads none. The
README in the archive says what is in it and what is not. Nobody but its owner
can read the file.`,
		Example: `  berth bundle
  berth bundle -o /tmp/node7.tar.gz
  ssh node7 berth bundle -o - > node7.tar.gz`,
		RunE: func(c *cobra.Command, _ []string) error {
			return a.hangs(c.Context(), func(ctx context.Context) error { return a.bundle(ctx, f) })
		},
	}
	c.Flags().StringVarP(&f.output, "output", "o", "", "file to write, - for stdout (default berth-bundle-TIME.tar.gz in this folder)")
	runtimeFlags(c, &f.places)
	return c
}

func (a *app) bundle(ctx context.Context, f bundleFlags) error {
	now := a.now().UTC().Truncate(time.Second)
	name := "berth-bundle-" + now.Format("20060102T150405Z")
	if out, ok := a.stdout.(*os.File); ok && f.output == "-" && isTerminal(out) {
		return usage{errors.New("-o -: stdout is a terminal")}
	}
	path := f.output
	if path == "" {
		path = name + ".tar.gz"
	}
	if _, err := os.Stat(filepath.Dir(path)); err != nil { // say so before the work
		return fmt.Errorf("writing the bundle: %w", err)
	}
	var archive bytes.Buffer
	if err := bundle.Write(ctx, &archive, name, now, aboutBundle, a.parts(f)); err != nil {
		return fmt.Errorf("writing the bundle: %w", err)
	}
	if f.output == "-" {
		_, err := a.stdout.Write(archive.Bytes())
		return err
	}
	if _, err := a.place(path, archive.Bytes(), 0o600); err != nil {
		return fmt.Errorf("writing the bundle: %w", err)
	}
	a.say("%s (%s)\n", path, size(int64(archive.Len())))
	return nil
}

const aboutBundle = `A bundle for a bug report, made by "berth bundle".

It has the names, namespaces and uids of pods, container ids, addresses and MACs, the names
of this node's links, and what the agent's log says. It has no environment, command line,
token, certificate or kubeconfig: "berth bundle" reads none of them. Of the configurations
of berthd and of the CNI plugin it has the values that Berth knows, not the files' text. Of
other programs' CNI configurations it has the file's name, the network's name and the types
of plugins. Of other programs' nftables it has the base chains.`

// large is how many bytes a list of all attachments may have: on a node with 5,000 pods the
// ledger has 20 MB.
const large = 64 << 20

// parts lists the parts of a bundle.
func (a *app) parts(f bundleFlags) []bundle.Part {
	return []bundle.Part{
		{Name: "versions.json", What: "berth, berthd, the kernel and the distribution", Write: a.writeVersions},
		{Name: "config.json", What: "berthd's configuration: the values in force if it were read now", Write: a.writeConfig},
		{Name: "networks.json", What: "the runtime's CNI configurations", Write: f.writeNetworks},
		{Name: "doctor.txt", What: "berth doctor", Write: a.says("", func(a *app, ctx context.Context) error { return a.doctor(ctx, f.places) })},

		{Name: "status.json", What: "berth status", Write: a.says("json", (*app).status)},
		{Name: "attachments.json", What: "berth attachments", Max: large, Write: a.says("json", func(a *app, ctx context.Context) error { return a.attachments(ctx, api.Filter{}) })},
		{Name: "owed.json", What: "berth owed", Max: large, Write: a.says("json", (*app).owed)},
		{Name: "health.json", What: "berth health: which nodes of the cluster this node reaches", Max: large, Write: a.says("json", (*app).health)},
		{Name: "events.json", What: "berth events, one on each line", Tail: true, Write: a.says("json", func(a *app, ctx context.Context) error { return a.lately(ctx, 0) })},
		{Name: "history.json", What: "berth history: what became of the pods that are gone", Max: 16 << 20, Write: a.writeHistory},
		{Name: "audit.json", What: "berth audit", Max: large, Write: a.says("json", func(a *app, ctx context.Context) error { return a.audit(ctx, false) })},
		{Name: "ledger.json", What: "berth ledger: every owner with its names and holds", Max: large, Write: a.says("json", (*app).ledger)},
		{Name: "metrics.txt", What: "the agent's metrics", Write: a.writeMetrics},
		{Name: "agent.txt", What: "the agent's process: its status and limits, and where its threads are in the kernel", Write: a.writeAgent},
		{Name: "log.txt", What: "journalctl -u berthd, the last hours", Max: 16 << 20, Tail: true, Write: writeLog},

		{Name: "links.txt", What: "ip link", Write: kernelHas("link")},
		{Name: "addresses.txt", What: "ip address", Write: kernelHas("address")},
		{Name: "routes.txt", What: "ip route show table all", Write: kernelHas("route")},
		{Name: "rules.txt", What: "ip rule", Write: kernelHas("rule")},
		{Name: "neighbours.txt", What: "ip neighbour", Write: writeNeighbours},
		{Name: "nftables.txt", What: "Berth's table, and all base chains", Write: a.writeTables},
		{Name: "conntrack.txt", What: "how full connection tracking is, and what it counts", Write: writeConntrack},
		{Name: "namespaces.txt", What: "ip netns, and which namespaces have a path", Write: writeNamespaces},
		{Name: "sysctls.txt", What: "sysctls about forwarding and addresses", Write: writeSysctls},
	}
}

// says returns a part that is what a command prints. A command's exit code is an answer, and
// no failure of the part.
func (a *app) says(output string, command func(*app, context.Context) error) func(context.Context, io.Writer) error {
	return func(ctx context.Context, w io.Writer) error {
		to := *a
		to.stdout, to.stderr, to.colour, to.output = w, w, false, output
		err := command(&to, ctx)
		if answer := exit(0); errors.As(err, &answer) {
			return nil
		}
		return err
	}
}
