package doctor

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berth-net/berth/internal/cri"
	"github.com/berth-net/berth/internal/root"
)

// plugin is the name of Berth's CNI plugin, and its type in configurations.
const plugin = "berth-cni"

// install is the command that puts the plugin and its configuration in place.
func (n *Node) install() string {
	command := "berth install"
	if n.Root != root.Default {
		command += " --root " + string(n.Root)
	}
	if n.Blind != nil { // install looks anew, and not where doctor guesses
		return command
	}
	return command + " --bin-dir " + n.BinDir + " --conf-dir " + n.ConfDir
}

// blind is the finding of a check that finds nothing in folders that nobody has named.
func (n *Node) blind(path string) Finding {
	return Finding{Unknown, fmt.Sprintf("%s is not there, and nobody says that a runtime looks there: %v", path, n.Blind), "see the check runtime, and then: " + n.install()}
}

// built is what Go writes into every version of the plugin's program.
const built = "\tgithub.com/berth-net/berth/cmd/berth-cni\n"

// IsPlugin reports whether a program is Berth's plugin, of whatever version.
func IsPlugin(program []byte) bool { return bytes.Contains(program, []byte(built)) }

// lookPlugin executes the plugin as a runtime does that asks for its versions.
func lookPlugin(ctx context.Context, n *Node) Finding {
	path := filepath.Join(n.BinDir, plugin)
	program, err := root.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && n.Blind != nil {
		return n.blind(path)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return Finding{Bad, path + " is not there", n.install()}
	}
	if err != nil {
		return unknown(err)
	}
	cmd := exec.CommandContext(ctx, path)
	cmd.Env = []string{"CNI_COMMAND=VERSION"}
	cmd.Stdin = strings.NewReader(`{"cniVersion":"1.0.0"}`)
	out, err := cmd.Output()
	var answer struct {
		Versions []string `json:"supportedVersions"`
	}
	if err == nil {
		err = json.Unmarshal(out, &answer)
	}
	if err == nil && len(answer.Versions) == 0 {
		err = fmt.Errorf("it answers %.100q", out)
	}
	if err != nil {
		return Finding{Bad, fmt.Sprintf("executing %s: %v", path, err), n.install() + "; the folder must not be mounted noexec"}
	}
	if !IsPlugin(program) {
		return Finding{Bad, path + " is not Berth's, but another plugin of that name", n.install()}
	}
	if self, err := os.Executable(); err == nil {
		beside, err := root.ReadFile(filepath.Join(filepath.Dir(self), plugin))
		if err == nil && !bytes.Equal(beside, program) {
			return Finding{Warn, fmt.Sprintf("%s is another build than the one beside this program", path), n.install()}
		}
	}
	return ok("%s speaks CNI %s to %s", path, answer.Versions[0], answer.Versions[len(answer.Versions)-1])
}

// lookRuntime reads the runtimes' own configuration.
func lookRuntime(_ context.Context, n *Node) Finding {
	all, err := cri.Node{Host: n.Host}.Find()
	if err != nil {
		return Finding{Bad, err.Error(), "mend that file: the runtime cannot read it, either"}
	}
	var seen []string
	for _, r := range all {
		switch {
		case r.Off != "":
			seen = append(seen, fmt.Sprintf("Kubernetes cannot start pods by %s: %s", r.Name, r.Off))
		case !slices.Contains(r.BinDirs.Paths, n.BinDir) || r.Conf() != n.ConfDir:
			return Finding{Warn, fmt.Sprintf("%s looks for plugins in %s (%s) and for networks in %s (%s), not in %s and %s", r.Name,
				strings.Join(r.BinDirs.Paths, ", "), r.BinDirs.From, r.Conf(), r.ConfDir.From, n.BinDir, n.ConfDir),
				"to look there: berth doctor --runtime " + r.Name}
		case r.Network != "" && r.Network != n.networkName():
			return Finding{Bad, fmt.Sprintf("%s takes the network %s alone (cni_default_network)", r.Name, r.Network), "cni_default_network = \"\" in its configuration, or berth install --name " + r.Network}
		default:
			seen = append(seen, fmt.Sprintf("%s looks for plugins in %s (%s), and for networks in %s (%s)", r.Name, n.BinDir, r.BinDirs.From, n.ConfDir, r.ConfDir.From))
		}
	}
	if len(seen) == 0 {
		return Finding{Warn, "no runtime that Berth knows is here", "install one, and then: " + n.install()}
	}
	return ok("%s", strings.Join(seen, "; "))
}

// networkName returns the name of the first network that is Berth's; "" if there is none.
func (n *Node) networkName() string {
	entries, _ := os.ReadDir(n.ConfDir)
	for _, e := range entries {
		c, err := cri.ReadNetwork(filepath.Join(n.ConfDir, e.Name()))
		if _, has := c.Plugin(plugin); has && err == nil {
			return c.Name
		}
	}
	return ""
}

// lookLoopback looks for the plugin with which containerd gives every pod its lo.
func lookLoopback(_ context.Context, n *Node) Finding {
	path := filepath.Join(n.BinDir, "loopback")
	info, err := os.Stat(path)
	switch {
	case err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0:
		return ok("%s is there", path)
	case err == nil:
		return Finding{Bad, path + " is no program", "remove it, and then: " + n.install()}
	case !errors.Is(err, fs.ErrNotExist):
		return unknown(err)
	case n.Blind != nil:
		return n.blind(path)
	}
	for _, r := range n.here() {
		switch {
		case r.Has("loopback"):
			return ok("%s has it in %s", r.Name, strings.Join(r.BinDirs.Paths, ", "))
		case !r.Loopback:
			return ok("%s is not there, and %s does not need it", path, r.Name)
		}
	}
	if !n.exists("/run/containerd/containerd.sock") {
		return ok("%s is not there, and containerd does not run", path)
	}
	return Finding{Bad, path + " is not there", n.install()}
}

// here returns the runtimes that look into the same folders as the checks.
func (n *Node) here() []cri.Runtime {
	all, _ := cri.Node{Host: n.Host}.Find() // lookRuntime tells the error
	return slices.DeleteFunc(all, func(r cri.Runtime) bool { return !slices.Contains(r.BinDirs.Paths, n.BinDir) })
}

// lookConflist reads the runtime's folder as libcni does.
func lookConflist(_ context.Context, n *Node) Finding {
	entries, err := os.ReadDir(n.ConfDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return unknown(err)
	}
	var first []string // the configurations that come before Berth's
	broken := ""
	for _, e := range entries { // by name
		if e.IsDir() || !slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(e.Name())) {
			continue
		}
		path := filepath.Join(n.ConfDir, e.Name())
		c, err := cri.ReadNetwork(path)
		if err != nil {
			broken = cmp.Or(broken, fmt.Sprintf("%s cannot be read: %v", path, err))
			continue
		}
		if _, has := c.Plugin(plugin); has {
			return n.judgeConf(path, c, first, broken)
		}
		first = append(first, path)
	}
	if broken != "" {
		return Finding{Bad, broken + ", and no other configuration in " + n.ConfDir + " names " + plugin, n.install()}
	}
	return Finding{Bad, "no configuration in " + n.ConfDir + " names " + plugin, n.install()}
}

// judgeConf judges Berth's configuration. first lists other configurations that come before Berth's,
// and broken says which configuration before Berth's cannot be read.
func (n *Node) judgeConf(path string, network cri.Network, first []string, broken string) Finding {
	c, _ := network.Plugin(plugin)
	refused, strange, lacks := network.Refused(c), c.Strange(), n.lacks(network)
	dir := root.Dir(filepath.Clean(cmp.Or(c.Root, string(root.Default))))
	switch config := n.config().Config; {
	case len(first) > 0:
		var moves []string
		for _, other := range first {
			moves = append(moves, "mv "+other+" "+other+".off")
		}
		return Finding{Bad, fmt.Sprintf("%s comes before %s: the runtime gives pods that network", first[0], path), strings.Join(moves, "; ")}
	case refused != nil:
		return Finding{Bad, fmt.Sprintf("with %s every ADD fails: %v", path, refused), "mend it, or: " + n.install() + " --overwrite"}
	case lacks != "":
		return Finding{Bad, fmt.Sprintf("%s chains the plugin %s, which is not in %s: every ADD fails", path, lacks, n.BinDir), "put it there, or take it out of " + path}
	case dir != n.Root:
		return Finding{Bad, fmt.Sprintf("%s names the agent of the root %s, not of %s", path, dir, n.Root), "berth --root " + string(dir) + " doctor, or: " + n.install()}
	case c.Pool != "" && config != nil && !slices.ContainsFunc(n.poolNames(), func(name string) bool { return name == c.Pool }):
		return Finding{Bad, fmt.Sprintf("%s names the pool %s, which the agent does not have", path, c.Pool), "name the pool in " + n.Root.Config() + ", or another one in " + path}
	case strange != "":
		return Finding{Warn, fmt.Sprintf("%s: %s", path, strange), "mend it, or: " + n.install() + " --overwrite"}
	case broken != "":
		return Finding{Warn, broken, "mend it, or move it away"}
	}
	return ok("%s is the first", path)
}

// lacks returns the type of a plugin of a network that the runtime does not find; "": the runtime
// finds all. Another check looks for Berth's own plugin.
func (n *Node) lacks(network cri.Network) string {
	for _, p := range network.Plugins {
		if p.Type == plugin {
			continue
		}
		_, err := os.Stat(filepath.Join(n.BinDir, p.Type))
		if errors.Is(err, fs.ErrNotExist) && !slices.ContainsFunc(n.here(), func(r cri.Runtime) bool { return r.Has(p.Type) }) {
			return p.Type
		}
	}
	return ""
}

func (n *Node) poolNames() (names []string) {
	for _, p := range n.config().Config.Pools {
		names = append(names, p.Name)
	}
	return names
}
