package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-net/berth/api/client"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/root"
)

// plugin is the name of the CNI plugin's program, and therefore its type in CNI
// configurations.
const plugin = "berth-cni"

// loopback is the name of the plugin's copy that sets up lo, for a runtime that wants a plugin of this
// name.
const loopback = "loopback"

// defaultName is the network's name in deploy.Conflist.
const defaultName = "berth"

type installFlags struct {
	placeFlags
	confOptions
	from       string
	pluginOnly bool
	overwrite  bool
	keep       bool
}

func (a *app) installCommand() *cobra.Command {
	var f installFlags
	c := &cobra.Command{
		Use:   "install",
		Short: "Put the CNI plugin and its configuration in place",
		Long: `Put the CNI plugin and its configuration (a conflist) in place for the container
runtimes of this node. It reads their own configuration (containerd 1 and 2,
CRI-O, k3s, RKE2) to learn where they look, and says which folders it chose and
why. If a runtime needs a plugin named loopback and has none, it gets a copy of
berth-cni by that name. It warns of configurations that the runtime takes before
Berth's.

It replaces each file in one step, even while runtimes execute it, and leaves a
file that is already right as it is. A configuration that somebody has edited
stays as it is, and the difference is shown; --overwrite replaces it, and keeps
the former one as FILE.bak. Values that an earlier install got by --pool, --mtu,
--chain or --capabilities stay in force until you give new ones. It refuses to
replace the configuration of another --root while pods are attached with that
root.

With --keep it does not end: it waits until the agent is ready for pods, puts all
of this in place, and puts back what somebody takes away, until it is told to end.
It leaves all in place then. That is for a container beside the agent's.

"berth uninstall" undoes all of that.`,
		Example: `  berth install --dry-run                                   # what it would do
  berth install
  berth install --pool blue --mtu 1400
  berth install --chain '{"type": "tuning", "sysctl": {"net.core.somaxconn": "512"}}'
  berth install --runtime containerd                        # only this one of several
  berth install --runtime containerd=/etc/k0s/containerd.toml
  berth install --root /tmp/a --bin-dir /tmp/a/bin --conf-dir /tmp/a/net.d --name a
  berth install --plugin-only                               # after an upgrade`,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := f.check(); err != nil {
				return err
			}
			if f.keep {
				return a.keepInstalled(c.Context(), f)
			}
			do := func() error {
				if f.pluginOnly {
					return a.upgrade(f)
				}
				v, err := a.install(c.Context(), f)
				if err != nil {
					return err
				}
				return a.print(v, func() { a.showInstall(v, f.dryRun) })
			}
			if f.dryRun {
				return do() // the lock of alone would make a folder
			}
			return a.alone(c.Context(), do)
		},
	}
	f.placeFlags.register(c, "pods are attached, if berth cannot tell whether they are, if a chained plugin is missing, or if the agent has no such pool")
	f.confOptions.register(c)
	fl := c.Flags()
	fl.StringVar(&f.from, "from", "", "folder that has berth-cni (default: the folder of this program)")
	fl.BoolVar(&f.pluginOnly, "plugin-only", false, "replace the plugin where it is in place, and leave the configuration as it is")
	fl.BoolVar(&f.keep, "keep", false, "wait until the agent is ready for pods, install, and put back what somebody takes away, until told to end")
	c.MarkFlagsMutuallyExclusive("keep", "dry-run")
	c.MarkFlagsMutuallyExclusive("keep", "plugin-only")
	fl.BoolVar(&f.overwrite, "overwrite", false, "replace a configuration that somebody has edited, and keep a copy of it")
	return c
}

// installView is what `berth install -o json` prints.
type installView struct {
	Runtimes []runtimeView `json:"runtimes"`
	Files    []fileView    `json:"files"`
	Warnings []string      `json:"warnings"`
}

// install puts the plugin in place, and then the configuration that makes the runtimes use it. It
// checks whatever it can before it writes the first file.
func (a *app) install(ctx context.Context, f installFlags) (v installView, err error) {
	program, rec, err := f.begin(a)
	if err != nil {
		return v, err
	}
	to, warnings, err := f.targets()
	if err != nil {
		return v, err
	}
	conf := rec.options(to, f)
	if err := a.chained(conf, to, f.force); err != nil {
		return v, err
	}
	text, err := a.conflist(f.name, conf)
	if err != nil {
		return v, err
	}
	known, err := a.known(ctx, conf.Pool, f.given(flagPool) && !f.force)
	if err != nil {
		return v, err
	}
	for _, path := range to.confPaths(f.name) {
		if err := a.stays(ctx, path, f.force); err != nil {
			return v, err
		}
	}
	rec.looks(to)
	v = installView{Runtimes: to.views(), Files: []fileView{}, Warnings: append(known, warnings...)}
	for _, dir := range to.binDirs() {
		done, err := rec.placeProgram(filepath.Join(dir, plugin), sortPlugin, program)
		if err != nil {
			return v, err
		}
		v.Files = append(v.Files, done)
	}
	for _, r := range to {
		done, err := rec.placeLoopback(r, program)
		if err != nil {
			return v, err
		}
		if done.File != "" && !slices.ContainsFunc(v.Files, func(f fileView) bool { return f.File == done.File }) {
			v.Files = append(v.Files, done)
		}
	}
	for _, path := range to.confPaths(f.name) {
		done, err := rec.placeConf(path, text, conf, f.overwrite)
		if err != nil {
			return v, err
		}
		v.Files = append(v.Files, done)
	}
	if err := rec.placeAgain(v.Files, program); err != nil {
		return v, err
	}
	v.Warnings = append(v.Warnings, f.strangers(to)...)
	for _, r := range to {
		v.Warnings = append(v.Warnings, rivals(r.Runtime, f.confPath(r.conf), f.name)...)
	}
	return v, nil
}

// known asks the agent for its pools, and warns if no agent answers. known also warns if the agent or,
// without an agent, its configuration lacks the pool. If chosen says that this command line chooses the
// pool, known refuses such a pool. If nothing tells the pools, because there is no configuration yet,
// known says nothing of the pool.
func (a *app) known(ctx context.Context, pool string, chosen bool) (warnings []string, err error) {
	warnings = []string{}
	var pools []string
	who := "the agent"
	err = a.ask(ctx, func(ctx context.Context, c *client.Client) error {
		all, err := c.Pools(ctx)
		for _, p := range all {
			pools = append(pools, p.Name)
		}
		return err
	})
	if errors.Is(err, client.ErrAway) {
		warnings = append(warnings, "no agent answers: until berthd runs, every pod's ADD fails")
	}
	if err != nil {
		who = a.dir().Config()
		c, err := config.Load(a.dir(), config.Flags{})
		if err != nil {
			return warnings, nil
		}
		for _, p := range c.Pools {
			pools = append(pools, p.Name)
		}
	}
	untaken := fmt.Sprintf("%s has the pool %s, but the agent does not: it refused that file (berth status says why), or was not told to read it (systemctl reload berthd)", a.dir().Config(), pool)
	switch {
	case pool == "" || slices.Contains(pools, pool):
	case chosen && a.inFile(pool):
		return nil, fmt.Errorf("%s; until it has the pool, every ADD would fail (--force goes on)", untaken)
	case a.inFile(pool):
		warnings = append(warnings, untaken+"; until it has the pool, every ADD fails")
	case chosen:
		return nil, fmt.Errorf("%s has no pool %s, but %s, so that every ADD would fail: name the pool in %s first, or use --force; --%s '' is the agent's default",
			who, pool, strings.Join(pools, ", "), a.dir().Config(), flagPool)
	default:
		warnings = append(warnings, fmt.Sprintf("%s has no pool %s: until it has, every ADD fails; berth install --%s '' goes back to the agent's default", who, pool, flagPool))
	}
	return warnings, nil
}

// inFile reports whether the agent's file has a pool. An agent that lacks such a pool has refused the
// file, or nobody has told the agent to read it.
func (a *app) inFile(pool string) bool {
	c, err := config.Load(a.dir(), config.Flags{})
	return err == nil && slices.ContainsFunc(c.Pools, func(p ipam.PoolConfig) bool { return p.Name == pool })
}

// program returns the plugin's program.
func (f installFlags) program() ([]byte, error) {
	from := f.from
	if from == "" {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("looking for this program's folder: %w", err)
		}
		from = filepath.Dir(self)
	}
	program, err := root.ReadFile(filepath.Join(from, plugin))
	if err != nil {
		return nil, fmt.Errorf("reading the plugin: %w (--from names its folder)", err)
	}
	return program, nil
}

// begin reads the plugin, and the record of what is installed.
func (f installFlags) begin(a *app) (program []byte, rec *record, err error) {
	if program, err = f.program(); err != nil {
		return nil, nil, err
	}
	if rec, err = a.record(); err != nil {
		return nil, nil, err
	}
	rec.dry = f.dryRun
	return program, rec, nil
}

// upgrade replaces the plugin, and its copies for lo, in each folder that has the plugin; with
// --bin-dir, in that folder.
func (a *app) upgrade(f installFlags) error {
	program, rec, err := f.begin(a)
	if err != nil {
		return err
	}
	dirs := []string{f.binDir}
	var warnings []string
	if f.binDir == "" {
		dirs, warnings = f.inPlace(rec)
	}
	v := installView{Runtimes: []runtimeView{}, Files: []fileView{}, Warnings: append([]string{}, warnings...)}
	for _, dir := range dirs {
		done, err := rec.placeProgram(filepath.Join(dir, plugin), sortPlugin, program)
		if err != nil {
			return err
		}
		v.Files = append(v.Files, done)
		if path := filepath.Join(dir, loopback); isLoopback(path) {
			if done, err = rec.placeProgram(path, sortLoopback, program); err != nil {
				return err
			}
			v.Files = append(v.Files, done)
		}
	}
	return a.print(v, func() { a.showInstall(v, f.dryRun) })
}

// inPlace returns the folders that have the plugin, among the record's folders, the runtimes'
// folders, and the folders that runtimes usually look into. A runtime's configuration that cannot
// be read is a warning.
func (f installFlags) inPlace(rec *record) (dirs, warnings []string) {
	to, warnings, err := f.targets()
	if err != nil {
		warnings = append(warnings, err.Error())
	}
	for _, file := range rec.Files {
		if file.Sort == sortPlugin {
			dirs = append(dirs, filepath.Dir(file.Path))
		}
	}
	for _, dir := range slices.Concat(dirs, to.binDirs(), usualDirs) {
		if _, err := os.Stat(filepath.Join(dir, plugin)); err == nil && !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	return dirs, warnings
}

func (a *app) showInstall(v installView, dryRun bool) {
	if len(v.Runtimes) > 0 {
		a.showRuntimes(v.Runtimes)
		a.say("\n")
	}
	if len(v.Files) == 0 {
		a.none("nothing to replace: %s is not in place", plugin)
	} else {
		a.showFiles(v.Files)
	}
	for _, f := range v.Files {
		if f.Difference != "" {
			a.say("\n%s", f.Difference)
		}
	}
	for _, w := range v.Warnings {
		a.none("berth: warning: %s", w)
	}
	if dryRun {
		a.say("Nothing is changed yet: this was a dry run.\n")
	}
}

func (f places) check() error {
	if e := cni.CheckNetworkName(f.name); e != nil {
		return usage{fmt.Errorf("--name: %s", e.Details)}
	}
	return nil
}
