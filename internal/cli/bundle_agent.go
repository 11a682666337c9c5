package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/api/client"
	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/internal/version"
)

// writeJSON writes a part's value for people who read it with jq.
func writeJSON(w io.Writer, value any) error {
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	return out.Encode(value)
}

// versionsView is versions.json.
type versionsView struct {
	versionView
	Modules      map[string]string `json:"modules"` // that this program was built with
	Kernel       string            `json:"kernel"`
	Distribution string            `json:"distribution,omitempty"`
	Processors   int               `json:"processors"`
	Root         string            `json:"root"` // the agent's
}

func (a *app) writeVersions(ctx context.Context, w io.Writer) error {
	v := versionsView{
		versionView: versionView{Berth: version.Text, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH},
		Modules:     map[string]string{}, Processors: runtime.NumCPU(), Root: a.root,
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			v.Modules[m.Path] = m.Version
		}
	}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return os.NewSyscallError("uname", err)
	}
	v.Kernel = unix.ByteSliceToString(u.Release[:]) + " " + unix.ByteSliceToString(u.Version[:])
	release, err := root.ReadFile("/etc/os-release")
	if errors.Is(err, fs.ErrNotExist) {
		release, err = root.ReadFile("/usr/lib/os-release")
	}
	if err == nil {
		for line := range strings.Lines(string(release)) {
			if name, is := strings.CutPrefix(line, "PRETTY_NAME="); is {
				v.Distribution = strings.Trim(strings.TrimSpace(name), `"'`)
			}
		}
	}
	_ = a.ask(ctx, func(ctx context.Context, c *client.Client) error {
		st, err := c.Status(ctx, "")
		v.Berthd = st.Version
		return err
	})
	return writeJSON(w, v)
}

// configView is config.json: every key that berthd.yaml has. None of them is a secret. Excluded has what ip-masq-agent's file excludes, too.
type configView struct {
	File          string         `json:"file"`
	Pools         []poolConfView `json:"pools"`
	MTU           int            `json:"mtu"`
	Masquerade    bool           `json:"masquerade"`
	Excluded      []string       `json:"excludedCIDRs"`
	MasqAgentFile string         `json:"ipMasqAgentFile"`
	Ports         string         `json:"ports"`
	Blocked       []string       `json:"blockedCIDRs"`
	Connections   int            `json:"connections"`
	Concurrency   int            `json:"concurrency"`
	Metrics       string         `json:"metrics"`
	Tracing       config.Tracing `json:"tracing"`
	LogLevel      string         `json:"logLevel"`
	SweepInterval string         `json:"sweepInterval"`
	Forwarding    bool           `json:"forwarding"`
	FullNotReady  bool           `json:"fullNotReady"`
}

type poolConfView struct {
	Name     string   `json:"name"`
	CIDRs    []string `json:"cidrs"`
	Cooldown string   `json:"cooldown"`
}

// writeConfig writes the configuration file's values. The pools that flags give to a running
// agent are in its status.
func (a *app) writeConfig(_ context.Context, w io.Writer) error {
	c, err := config.Load(a.dir(), config.Flags{})
	if err != nil {
		return err
	}
	v := configView{
		File: a.dir().Config(), MTU: c.MTU, Masquerade: c.Masquerade.Enabled, Excluded: texts(c.Masquerade.Excluded()),
		MasqAgentFile: c.Masquerade.IPMasqAgentFile,
		Ports:         fmt.Sprintf("%d-%d", c.Masquerade.Ports.First, c.Masquerade.Ports.Last), Blocked: texts(c.BlockedCIDRs),
		Connections: c.Connections, Concurrency: c.Concurrency, Metrics: c.Metrics, Tracing: c.Tracing, LogLevel: c.LogLevel.String(),
		SweepInterval: c.SweepInterval.String(), Forwarding: c.Forwarding, FullNotReady: c.FullNotReady,
	}
	for _, p := range c.Pools {
		v.Pools = append(v.Pools, poolConfView{p.Name, texts(p.CIDRs), p.Cooldown.String()})
	}
	return writeJSON(w, v)
}

func texts[T fmt.Stringer](values []T) []string {
	all := []string{}
	for _, v := range values {
		all = append(all, v.String())
	}
	return all
}

// networkView is a file of networks.json.
type networkView struct {
	File    string           `json:"file"`
	Error   string           `json:"error,omitempty"`
	Name    string           `json:"name,omitempty"`
	Version string           `json:"cniVersion,omitempty"`
	Types   []string         `json:"types"`           // of its plugins
	Berth   []map[string]any `json:"berth,omitempty"` // the known keys of Berth's plugins
}

// pluginKeys are the keys of Berth's network configuration whose values are no secrets.
var pluginKeys = []string{"type", "root", "pool", "mtu", "mode", "wait", "addWait", "gcMinAge", "dns", "capabilities"}

func (f bundleFlags) writeNetworks(_ context.Context, w io.Writer) error {
	_, confDir, _ := f.folders()
	entries, err := os.ReadDir(confDir)
	if err != nil {
		return err
	}
	all := []networkView{}
	for _, e := range entries {
		if e.IsDir() {
			continue
		}
		all = append(all, readNetwork(confDir, e.Name()))
	}
	return writeJSON(w, all)
}

func readNetwork(dir, file string) networkView {
	v := networkView{File: file, Types: []string{}}
	raw, err := root.ReadFile(filepath.Join(dir, file))
	var conf map[string]any
	if err == nil {
		err = json.Unmarshal(raw, &conf)
	}
	if err != nil {
		v.Error = err.Error()
		return v
	}
	v.Name, _ = conf["name"].(string)
	v.Version, _ = conf["cniVersion"].(string)
	list, _ := conf["plugins"].([]any)
	if list == nil {
		list = []any{conf}
	}
	for _, one := range list {
		p, _ := one.(map[string]any)
		typ, _ := p["type"].(string)
		v.Types = append(v.Types, typ)
		if typ != plugin {
			continue
		}
		known := map[string]any{}
		for _, key := range pluginKeys {
			if value, there := p[key]; there {
				known[key] = value
			}
		}
		v.Berth = append(v.Berth, known)
	}
	return v
}

func (a *app) writeMetrics(ctx context.Context, w io.Writer) error {
	return a.ask(ctx, func(ctx context.Context, c *client.Client) error {
		raw, err := c.Metrics(ctx)
		if err == nil {
			_, err = w.Write(raw)
		}
		return err
	})
}

// writeAgent writes what /proc has of the agent, without its environment and command line. The
// stacks are the kernel's: they show which lock a thread waits for.
func (a *app) writeAgent(ctx context.Context, w io.Writer) error {
	pid, err := client.Listener(ctx, a.dir().Socket())
	if err != nil {
		return err
	}
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	show := func(file string) error {
		raw, err := os.ReadFile(filepath.Join(proc, file))
		_, _ = fmt.Fprintf(w, "== %s\n%s\n", file, cmp.Or(strings.TrimRight(string(raw), "\n"), "-"))
		return err
	}
	errs := []error{show("status"), show("limits"), show("cgroup")}
	threads, err := os.ReadDir(filepath.Join(proc, "task"))
	errs = append(errs, err)
	for _, t := range threads {
		for _, file := range []string{"wchan", "stack"} {
			err := show(filepath.Join("task", t.Name(), file))
			// The thread may have ended, and the kernel shows stacks to nobody but the machine's own root.
			if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH) && !errors.Is(err, fs.ErrPermission) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// logHours is how far back the log goes.
const logHours = 6

// writeLog asks journald for the agent's log.
func writeLog(ctx context.Context, w io.Writer) error {
	cmd := exec.CommandContext(ctx, "journalctl", "--unit=berthd", "--no-pager", "--quiet", "--output=short-iso-precise",
		fmt.Sprintf("--since=-%dh", logHours))
	var complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = w, &complaint
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("running journalctl: %w %s", err, complaint.Bytes())
	}
	return nil
}
