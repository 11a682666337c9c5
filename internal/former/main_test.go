package former_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/berth-net/berth/internal/former"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
)

// run is an execution of a plugin: what the plugin had.
type run struct {
	plugin, args, netns, ifname string
	stdin                       json.RawMessage
}

// plugins are plugins in memory, of which libcni executes each. They answer alike.
type plugins struct {
	version.PluginDecoder
	result string
	runs   []run
}

func (p *plugins) ExecPlugin(_ context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	get := func(key string) string {
		for _, e := range slices.Backward(environ) {
			if value, ok := strings.CutPrefix(e, key+"="); ok {
				return value
			}
		}
		return ""
	}
	p.runs = append(p.runs, run{path, get("CNI_ARGS"), get("CNI_NETNS"), get("CNI_IFNAME"), bytes.Clone(stdin)})
	return []byte(p.result), nil
}

func (p *plugins) FindInPath(plugin string, _ []string) (string, error) { return plugin, nil }

// node is a root with libcni's cache.
type node struct {
	*testing.T
	dir string
}

func newNode(t *testing.T) node { return node{t, t.TempDir()} }

// libcni is libcni with a cache of the node.
func (n node) libcni(cache string, p *plugins) *libcni.CNIConfig {
	return libcni.NewCNIConfigWithCacheDir(nil, filepath.Join(n.dir, cache), p)
}

// add has libcni attach a container by a list.
func (n node) add(cache, list string, rt libcni.RuntimeConf) []run {
	n.Helper()
	l, err := libcni.NetworkConfFromBytes([]byte(list))
	nettest.Must(n, err)
	p := &plugins{result: result}
	_, err = n.libcni(cache, p).AddNetworkList(n.Context(), l, &rt)
	nettest.Must(n, err)
	return p.runs
}

// result is what plugins answer.
const result = `{"cniVersion":"1.0.0","interfaces":[{"name":"veth1"},{"name":"eth0","sandbox":"/run/netns/a"}],"ips":[{"interface":1,"address":"10.0.0.2/24","gateway":"10.0.0.1"}],"routes":[{"dst":"0.0.0.0/0"}]}`

// write writes a file.
func (n node) write(path, text string) {
	n.Helper()
	nettest.Must(n, os.MkdirAll(filepath.Dir(filepath.Join(n.dir, path)), 0o755))
	nettest.Must(n, os.WriteFile(filepath.Join(n.dir, path), []byte(text), 0o600))
}

// remove removes files by their pattern, of which there must be some.
func (n node) remove(pattern string) {
	n.Helper()
	paths, err := filepath.Glob(filepath.Join(n.dir, pattern))
	nettest.Must(n, err)
	if len(paths) == 0 {
		n.Fatalf("there is no %s", pattern)
	}
	for _, path := range paths {
		nettest.Must(n, os.Remove(path))
	}
}

// read reads a node without an error.
func (n node) read(cniDirs ...string) ([]former.Attachment, []former.Problem) {
	n.Helper()
	all, problems, err := former.Read(root.Dir(n.dir), cniDirs...)
	nettest.Must(n, err)
	return all, problems
}

// sound reads a node that has no problems.
func (n node) sound(cniDirs ...string) []former.Attachment {
	n.Helper()
	all, problems := n.read(cniDirs...)
	if len(problems) > 0 {
		n.Fatalf("problems: %v", problems)
	}
	return all
}

// names returns an attachment's network and interface each.
func names(all []former.Attachment) string {
	var names []string
	for _, a := range all {
		names = append(names, a.Network+" "+a.Ifname)
	}
	return strings.Join(names, ", ")
}

// had takes a plugin's stdin apart: its configuration, name and cniVersion, and prevResult.
func had(t *testing.T, stdin json.RawMessage) (config, list, prevResult string) {
	t.Helper()
	var keys map[string]json.RawMessage
	nettest.Must(t, json.Unmarshal(stdin, &keys))
	list, prevResult = string(keys["name"])+string(keys["cniVersion"]), compact(t, keys["prevResult"])
	for _, key := range []string{"name", "cniVersion", "prevResult"} {
		delete(keys, key)
	}
	raw, err := json.Marshal(keys)
	nettest.Must(t, err)
	return compact(t, raw), list, prevResult
}

// compact returns JSON with sorted keys. Numbers stay as they are.
func compact(t *testing.T, raw json.RawMessage) string {
	t.Helper()
	if raw == nil {
		return ""
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var value any
	nettest.Must(t, d.Decode(&value))
	text, err := json.Marshal(value)
	nettest.Must(t, err)
	return string(text)
}
