package networks

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kube/kubetest"
	"github.com/berth-net/berth/internal/nad"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/beside"
	"github.com/berth-net/berth/test/programs"
)

// reference are the reference plugins that the definitions of the comparison name.
var reference = []string{"bridge", "ptp", "macvlan", "host-local", "static", "tuning", "bandwidth"}

// noting stands in a plugin's place: it notes an execution, a line each with tabs between verb, interface, plugin, CNI_ARGS and stdin,
// and then executes the plugin.
const noting = `#!/bin/sh
conf=$(cat)
printf '%%s\t%%s\t%%s\t%%s\t%%s\n' "$CNI_COMMAND" "$CNI_IFNAME" %[1]s "$CNI_ARGS" "$(printf %%s "$conf" | tr '\n\t' '  ')" >>%[2]s
printf %%s "$conf" | exec %[3]s
`

// both is a node of a cluster on which Multus and Berth attach pods.
type both struct {
	*node
	api    *kubetest.Server
	peers  string // folder of Multus
	confs  string // confDir
	kube   string // the kubeconfig
	noted  string // file of executions
	shared string // the configuration's keys that both get
}

// newBoth starts such a node. If notes is false, the plugins are executed themselves, and nobody notes them.
func newBoth(t testing.TB, notes bool) *both {
	t.Helper()
	nettest.Need(t)
	peers := programs.Peers(t, append([]string{"multus"}, reference...)...)
	b := &both{api: kubetest.Serve(t), peers: peers, confs: t.TempDir(), noted: filepath.Join(t.TempDir(), "noted")}
	b.kube = b.api.Kubeconfig(t)
	b.api.Put("nodes", kubetest.Object{
		"metadata": kubetest.Object{"name": "me"}, "spec": kubetest.Object{"podCIDRs": []any{"10.244.7.0/24"}},
		"status": kubetest.Object{"addresses": []any{kubetest.Object{"type": "InternalIP", "address": "192.0.2.1"}}},
	})
	b.node = newNodeWith(t, fmt.Sprintf("kubernetes: {node: me, kubeconfig: %q, routing: native, health: {enabled: false}, networks: true}\n", b.kube), reference...)
	for _, name := range reference {
		if notes {
			file := filepath.Join(b.plugins, name)
			must(t, os.Remove(file))
			must(t, os.WriteFile(file, fmt.Appendf(nil, noting, name, b.noted, filepath.Join(peers, name)), 0o755))
		}
	}
	b.shared = fmt.Sprintf(`"name":"all","kubeconfig":%q,"cniDir":%q,"binDir":%q,"confDir":%q`, b.kube, t.TempDir(), b.plugins, b.confs)
	return b
}

// define makes a definition; its name may begin with a namespace.
func (b *both) define(name, config string) {
	namespace, short, spaced := strings.Cut(name, "/")
	if !spaced {
		namespace, short = "default", name
	}
	spec := kubetest.Object{}
	if config != "" {
		spec["config"] = config
	}
	b.api.Put("network-attachment-definitions", kubetest.Object{"metadata": kubetest.Object{"namespace": namespace, "name": short}, "spec": spec})
}

// pod makes the API's object of a pod.
func (b *both) pod(namespace, name string, annotations kubetest.Object) {
	b.api.Put("pods", kubetest.Object{
		"metadata": kubetest.Object{"namespace": namespace, "name": name, "uid": "uid-" + name, "annotations": annotations},
		"spec":     kubetest.Object{"nodeName": "me"},
	})
}

// status is the status that a pod has.
func (b *both) status(namespace, name string) string {
	meta, _ := b.api.Get("pods", namespace+"/"+name)["metadata"].(kubetest.Object)
	annotations, _ := meta["annotations"].(kubetest.Object)
	text, _ := annotations[nad.KeyStatus].(string)
	return text
}

// request is what a runtime asks a plugin.
type request struct {
	plugin          string // multus or berth-cni
	verb, container string
	namespace, name string // of the pod
	netns           string
	version, keys   string // of the configuration; keys begins with a comma or is ""
	prevResult      []byte // nil: none
}

// exec executes Multus, or Berth's plugin.
func (b *both) exec(r request) ([]byte, error) {
	var out, complaint bytes.Buffer
	cmd := programs.Plugin(b.bin, r.verb, r.container, r.netns)
	conf := fmt.Sprintf(`"cniVersion":%q,"type":%q,%s%s`, r.version, r.plugin, b.shared, r.keys)
	if r.plugin == "multus" {
		cmd.Path = filepath.Join(b.peers, "multus")
	} else {
		conf += fmt.Sprintf(`,"root":%q`, b.Root)
	}
	if r.prevResult != nil {
		conf += `,"prevResult":` + string(r.prevResult)
	}
	cmd.Env = append(cmd.Env, fmt.Sprintf("CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=%s;K8S_POD_NAME=%s;K8S_POD_INFRA_CONTAINER_ID=%s;K8S_POD_UID=uid-%[2]s", r.namespace, r.name, r.container))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader("{"+conf+"}"), &out, &complaint
	if err := cmd.Run(); err != nil {
		return nil, programs.Refusal(out.Bytes(), fmt.Sprintf("%s: %v", r.verb, err), complaint.String())
	}
	return out.Bytes(), nil
}

// executions returns what plugins were executed for, since it was last asked.
func (b *both) executions() (all []execution) {
	b.t.Helper()
	raw, err := os.ReadFile(b.noted)
	if os.IsNotExist(err) {
		return nil
	}
	must(b.t, err)
	must(b.t, os.Remove(b.noted))
	for line := range strings.Lines(string(raw)) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), "\t", 5)
		all = append(all, execution{f[0] + " " + f[1] + " " + f[2], arguments(f[3]), f[4]})
	}
	return all
}

// execution is one execution of a plugin.
type execution struct{ what, args, stdin string }

// arguments sorts CNI_ARGS, without IgnoreUnknown, of which there are several spellings. Multus repeats what the runtime has said.
func arguments(text string) string {
	all := strings.Split(text, ";")
	slices.Sort(all)
	all = slices.DeleteFunc(slices.Compact(all), func(a string) bool { return strings.HasPrefix(a, "IgnoreUnknown=") })
	return strings.Join(all, " ")
}

// plain replaces in a text what differs between two pods of one kind.
func plain(text string, pod *ns.Netns) string { return beside.Plain(text, pod.Ref().Path) }

// has says what links, addresses and routes there are in a pod, or on the node (nil), without those that the kernel makes in its own time.
func (b *both) has(at, pod *ns.Netns) string {
	return strings.Join(beside.Lines(nettest.Snapshot(b.t, at), pod.Ref().Path, "link br8 ", "link br9 "), "\n")
}
