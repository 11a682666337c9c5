package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/berth-net/berth/deploy"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/root"
)

// plugin is the name of the CNI plugin's program, and therefore its type in CNI
// configurations.
const plugin = "berth-cni"

// defaultName is the network's name in deploy.Conflist.
const defaultName = "berth"

type installFlags struct {
	binDir, confDir string
	name            string // of the network
	from            string
	uninstall       bool
	force           bool
}

func (a *app) installCommand() *cobra.Command {
	var f installFlags
	c := &cobra.Command{
		Use:   "install",
		Short: "Put the CNI plugin and its configuration in place, or remove them",
		Long: `Put the CNI plugin and its configuration (a conflist) in place for a runtime. It
replaces each file in one step, even while runtimes execute it, and leaves a
file that is already right as it is. --uninstall removes the files again. It
refuses while pods are attached, because their runtime needs the plugin to
detach them. install also refuses to replace the configuration of another --root
while pods are attached with that root.`,
		Example: `  berth install
  berth install --root /tmp/a --bin-dir /tmp/a/bin --conf-dir /tmp/a/net.d --name a
  berth install --uninstall`,
		RunE: func(c *cobra.Command, _ []string) error {
			if e := cni.CheckNetworkName(f.name); e != nil {
				return usage{fmt.Errorf("--name: %s", e.Details)}
			}
			if f.uninstall {
				return a.uninstall(c.Context(), f)
			}
			return a.install(c.Context(), f)
		},
	}
	fl := c.Flags()
	fl.StringVar(&f.binDir, "bin-dir", "/opt/cni/bin", "folder in which the runtime looks for CNI plugins")
	fl.StringVar(&f.confDir, "conf-dir", "/etc/cni/net.d", "folder in which the runtime looks for CNI configurations")
	fl.StringVar(&f.name, "name", defaultName, "the network's name; the file is 10-NAME.conflist")
	fl.StringVar(&f.from, "from", "", "folder that has berth-cni (default: the folder of this program)")
	fl.BoolVar(&f.uninstall, "uninstall", false, "remove what install put in place")
	fl.BoolVar(&f.force, "force", false, "go on even if pods are attached, or if berth cannot tell whether they are")
	return c
}

func (f installFlags) pluginPath() string { return filepath.Join(f.binDir, plugin) }

func (f installFlags) confPath() string {
	return filepath.Join(f.confDir, "10-"+f.name+".conflist")
}

// fileView is what was done with a file.
type fileView struct {
	File   string `json:"file"`
	Action string `json:"action"` // installed, replaced, unchanged, removed, absent, kept
}

// install puts the plugin in place, and then the configuration that makes the
// runtime use it.
func (a *app) install(ctx context.Context, f installFlags) error {
	if err := a.stays(ctx, f); err != nil {
		return err
	}
	from := f.from
	if from == "" {
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("looking for this program's folder: %w", err)
		}
		from = filepath.Dir(self)
	}
	program, err := root.ReadFile(filepath.Join(from, plugin))
	if err != nil {
		return fmt.Errorf("reading the plugin: %w (--from names its folder)", err)
	}
	conf, err := a.conflist(f.name)
	if err != nil {
		return err
	}
	var done []fileView
	for _, file := range []struct {
		path    string
		content []byte
		mode    os.FileMode
	}{{f.pluginPath(), program, 0o755}, {f.confPath(), conf, 0o644}} {
		action, err := place(file.path, file.content, file.mode)
		if err != nil {
			return fmt.Errorf("installing %s: %w", file.path, err)
		}
		done = append(done, fileView{file.path, action})
	}
	return a.print(done, func() { a.showFiles(done) })
}

// conflist is deploy.Conflist for the network of this name and the agent of this
// root.
func (a *app) conflist(name string) ([]byte, error) {
	if a.root == "/" && name == defaultName {
		return deploy.Conflist, nil
	}
	var conf map[string]any
	if err := json.Unmarshal(deploy.Conflist, &conf); err != nil {
		return nil, fmt.Errorf("reading the built-in configuration: %w", err)
	}
	conf["name"] = name
	if a.root != "/" {
		for _, p := range conf["plugins"].([]any) { // a test checks that the file has this form
			p.(map[string]any)["root"] = a.root
		}
	}
	raw, err := json.MarshalIndent(conf, "", "  ")
	return append(raw, '\n'), err
}

func (a *app) showFiles(files []fileView) {
	t := newTable("FILE", "RESULT")
	for _, f := range files {
		t.row(f.File, f.Action)
	}
	a.table(t)
}
