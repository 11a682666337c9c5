package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-net/berth/api/client"
	"github.com/berth-net/berth/internal/history"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/root"
)

// needed is uninstall's exit code when pods are attached: a package's prerm goes by it.
const needed = 3

func (a *app) uninstallCommand() *cobra.Command {
	var f placeFlags
	c := &cobra.Command{
		Use:   "uninstall",
		Short: "Undo what berth install did",
		Long: `Remove what "berth install" put in place: the CNI plugin, its copy named loopback, its
configurations (conflists) and the folders that it made. --runtime, --bin-dir,
--conf-dir or --name remove only what is there. It refuses while pods are
attached, because their runtime needs the plugin to detach them; if one comes
while the configurations are removed, the plugin stays. A pod that ended while no
agent ran does not count, even if its runtime told another network's plugin of
its end: "berthd --remove" gives back what that pod had, and uninstall removes
what the runtime's cache (/var/lib/cni) has kept of it. It keeps a configuration
that somebody has edited, and the plugin while a configuration uses it. It says
what else there is of Berth on the node: "berthd --remove" gives back what the
stopped agent holds there. A dry run shows all that also while pods are attached.

The exit code is 3 if pods are attached, or if berth cannot tell whether they
are.`,
		Example: `  berth uninstall --dry-run      # what it would do
  berth uninstall`,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := f.check(); err != nil {
				return err
			}
			if f.dryRun {
				return a.uninstall(c.Context(), f)
			}
			return a.aloneIfInstalled(c.Context(), func() error { return a.uninstall(c.Context(), f) })
		},
	}
	f.register(c, "pods are attached, or if berth cannot tell whether they are")
	return c
}

// uninstall removes configurations, and then the plugin unless another configuration uses it.
func (a *app) uninstall(ctx context.Context, f placeFlags) error {
	refused := a.refused(ctx, f.force)
	if refused != nil && !f.dryRun {
		return refused
	}
	rec, err := a.record()
	if err != nil {
		return err
	}
	files, err := f.installed(rec)
	if err != nil {
		return err
	}
	u := undoing{record: rec, remove: unplace, force: f.force, needed: func() string { return a.needed(ctx, f.force || refused != nil) }}
	switch u.take = u.setAside; {
	case f.dryRun:
		u.remove, u.take = present, present
	case f.force:
		u.take = unplace
	}
	failed := u.files(ctx, files)
	alone := rec.alone()
	if !f.dryRun {
		if err := rec.save(); err != nil { // on a full disk; the files are removed all the same, and uninstall says so
			alone, failed = false, errors.Join(failed, fmt.Errorf("noting what is removed: %w", err))
		}
	}
	var past []fileView
	if failed == nil {
		past, failed = a.removeHistory(ctx, f.dryRun)
	}
	if failed == nil && refused == nil && u.kept == "" && !f.force {
		var cached []fileView
		cached, failed = a.removeCached(f.dryRun)
		past = append(past, cached...)
	}
	done := slices.Concat(u.done, past, a.leaves(alone && u.all()))
	err = a.print(done, func() {
		a.showFiles(done)
		if used := u.stillUsed(); len(used) > 0 {
			a.none("berth: warning: the runtime goes on to use Berth: without an agent every new pod fails, until you rm %s", strings.Join(used, " "))
		}
		switch {
		case refused != nil:
			a.say("Nothing is removed yet: this was a dry run, and without --dry-run berth refuses.\n")
		case f.dryRun:
			a.say("Nothing is removed yet: this was a dry run.\n")
		}
	})
	if err = errors.Join(failed, err, refused); u.kept != "" && err == nil {
		err = coded{needed, fmt.Errorf("%s: the plugin stays", u.kept)}
	}
	return err
}

// refused is the error of an uninstall while pods are attached, or while nobody can tell; nil with force.
func (a *app) refused(ctx context.Context, force bool) error {
	if force {
		return nil
	}
	switch pods, err := a.attached(ctx); {
	case err != nil:
		return coded{needed, fmt.Errorf("cannot tell whether pods are attached: %w (--force removes the plugin all the same)", err)}
	case len(pods) > 0:
		return coded{needed, fmt.Errorf("%s: their runtime needs the plugin to detach them; drain the node first, or use --force", howMany(pods))}
	}
	return nil
}

// needed says why the plugin has to stay though nobody needed it before; "": the plugin need not stay,
// or nobody asks (force).
func (a *app) needed(ctx context.Context, force bool) string {
	if force {
		return ""
	}
	pods, err := a.attached(ctx)
	switch {
	case err != nil:
		return fmt.Sprintf("berth cannot tell any more whether pods are attached (%v)", err)
	case len(pods) > 0:
		return howMany(pods) + " meanwhile"
	}
	return ""
}

// installed returns the files of an installation: the record's files and, if there is no record or
// if flags name places, the files in these places. Without a record the plugin may also be in a
// folder that runtimes usually look into. In each folder with the plugin, the list also has the
// copy named loopback, even if another root's record has it.
func (f placeFlags) installed(rec *record) (files []installedFile, err error) {
	chosen := slices.ContainsFunc([]string{"runtime", "bin-dir", "conf-dir", "name"}, f.given)
	if !chosen && len(rec.Files) > 0 {
		return withLoopbacks(slices.Clone(rec.Files)), nil
	}
	to, _, err := f.targets()
	if err != nil {
		return nil, err
	}
	for _, path := range to.confPaths(f.name) {
		files = append(files, installedFile{Path: path, Sort: sortConf})
	}
	dirs := to.binDirs()
	if !chosen {
		for _, dir := range usualDirs {
			if _, err := os.Lstat(filepath.Join(dir, plugin)); err == nil && !slices.Contains(dirs, dir) {
				dirs = append(dirs, dir)
			}
		}
	}
	for _, dir := range dirs {
		files = append(files, installedFile{Path: filepath.Join(dir, plugin), Sort: sortPlugin})
	}
	return withLoopbacks(files), nil
}

// withLoopbacks adds the copies for lo that are beside the plugins.
func withLoopbacks(files []installedFile) []installedFile {
	for _, f := range slices.Clone(files) {
		path := filepath.Join(filepath.Dir(f.Path), loopback)
		listed := slices.ContainsFunc(files, func(f installedFile) bool { return f.Path == path })
		if f.Sort == sortPlugin && !listed && isLoopback(path) {
			files = append(files, installedFile{Path: path, Sort: sortLoopback})
		}
	}
	return files
}

// removeHistory removes the agent's history, unless an agent writes it.
func (a *app) removeHistory(ctx context.Context, dryRun bool) ([]fileView, error) {
	v := fileView{File: history.Path(a.dir())}
	if _, err := os.Lstat(v.File); err != nil {
		return nil, nil
	}
	err := a.ask(ctx, func(ctx context.Context, c *client.Client) error {
		_, err := c.Health(ctx)
		return err
	})
	switch {
	case !errors.Is(err, client.ErrAway):
		v.Action, v.Why = "kept", "the agent writes it: `berthd --remove` removes it, once the agent is stopped"
	case dryRun:
		v.Action = "would be removed"
	default:
		v.Action = "removed"
		if _, err := history.Remove(a.dir()); err != nil {
			return nil, err
		}
	}
	return []fileView{v}, nil
}

// present is unplace for a dry run: it removes nothing.
func present(path string) (action string, err error) {
	if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
		return "absent", nil
	} else if err != nil {
		return "", err
	}
	return "would be removed", nil
}

// leaves returns the files that the agent has on the node, and why uninstall does not remove
// them. recordOnly says that the state folder has nothing but install's record, which goes.
func (a *app) leaves(recordOnly bool) []fileView {
	var left []fileView
	for _, v := range []fileView{
		{File: a.dir().Config(), Action: "kept", Why: "install did not write it"},
		{File: a.dir().WireGuardKey(), Action: "kept", Why: "the node's private key: `berthd --remove` removes it"},
		{File: a.dir().State(), Action: "kept", Why: a.inState()},
	} {
		_, err := os.Lstat(v.File)
		if v.File == a.dir().State() && recordOnly {
			v.Action, v.Why = "removed", ""
			if err == nil { // a dry run
				v.Action, v.Why = "would be removed", ""
			}
			left = append(left, v)
		} else if err == nil {
			left = append(left, v)
		}
	}
	return left
}

// inState says why the state folder stays: the agent holds something on the node, or the folder has
// the ledger.
func (a *app) inState() string {
	s, err := ledger.Read(a.dir().Ledger(), kinds)
	if err != nil && !errors.Is(err, os.ErrNotExist) || err == nil && len(s.Owners) > 0 {
		return "the agent needs it: `berthd --remove` gives back what the agent holds on the node"
	}
	purge := "`rm -r " + a.dir().State() + "` removes it"
	if a.root == "/" {
		purge = "`dpkg -P berth` or " + purge
	}
	return "the ledger and the addresses that rest are in it: " + purge
}

// stays refuses a root that differs from the root of a configuration in place, while pods are
// attached with that configuration: their DEL would go to an agent that knows nothing of them.
func (a *app) stays(ctx context.Context, path string, force bool) error {
	was, there := rootOf(path)
	if !there || filepath.Clean(was) == a.root || force {
		return nil
	}
	former := *a
	former.root = filepath.Clean(was)
	pods, err := former.attached(ctx)
	if err != nil {
		return fmt.Errorf("cannot tell whether pods are attached with --root %s, which the present %s names: %w (--force replaces that file all the same)", was, path, err)
	}
	if len(pods) > 0 {
		return fmt.Errorf("%s with --root %s, which the present %s names: their runtime needs that file to detach them; drain the node first, or use --force",
			howMany(pods), was, path)
	}
	return nil
}

// rootOf returns the root that a configuration has for the plugin. there is false if the
// configuration cannot be read, or does not name the plugin.
func rootOf(path string) (dir string, there bool) {
	raw, err := root.ReadFile(path)
	if err != nil {
		return "", false
	}
	var conf struct {
		Plugins []struct {
			Type string `json:"type"`
			Root string `json:"root"`
		} `json:"plugins"`
	}
	if json.Unmarshal(raw, &conf) != nil {
		return "", false
	}
	for _, p := range conf.Plugins {
		if p.Type == plugin {
			return cmp.Or(p.Root, string(root.Default)), true
		}
	}
	return "", false
}

// usedBy returns the path of a configuration in the folders that names the plugin; "" if no
// configuration does. usedBy leaves out configurations that this uninstall removes or, with
// --dry-run, would remove.
func usedBy(dirs []string, removed []fileView) (user string, err error) {
	err = confsIn(dirs, removed, func(path string) bool {
		raw, err := root.ReadFile(path)
		if err == nil && strings.Contains(string(raw), `"`+plugin+`"`) {
			user = path
		}
		return user == ""
	})
	return user, err
}

// othersIn returns the path of a configuration that stays in one of the folders; "" if none stays.
func othersIn(dirs []string, removed []fileView) (other string) {
	_ = confsIn(dirs, removed, func(path string) bool { // usedBy has read the folders
		other = path
		return false
	})
	return other
}

// confsIn calls yield with the path of each configuration in the folders, until yield returns false.
// confsIn leaves out configurations that this uninstall removes or, with --dry-run, would remove.
func confsIn(dirs []string, removed []fileView, yield func(path string) bool) error {
	for _, dir := range dirs {
		files, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		for _, file := range files {
			path := filepath.Join(dir, file.Name())
			if !isConf(path) || slices.ContainsFunc(removed, func(v fileView) bool { return v.File == path && v.Action != "kept" }) {
				continue
			}
			if !yield(path) {
				return nil
			}
		}
	}
	return nil
}
