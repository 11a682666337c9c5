package networks

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/google/go-cmp/cmp"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kube/kubetest"
	"github.com/berth-net/berth/internal/nad"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/beside"
)

// pod is a pod of the comparison, and what the plugin's configuration says when it comes.
type pod struct {
	networks  string // its annotation; "": it asks for none
	first     string // its annotation for another default network; "": none
	namespace string // "": default
	version   string // of the configuration; "": 1.0.0
	keys      string // of the configuration; "": the delegate of usual
}

// The fields of a look, in the order in which they are compared.
var fields = []string{
	beside.Refused, "pod", "node", "result", "status", "order of ADD", "stdin of ADD", "CNI_ARGS of ADD",
	"answer to CHECK", "order of CHECK", "stdin of CHECK", "CNI_ARGS of CHECK",
	"answer to DEL", "order of DEL", "stdin of DEL", "CNI_ARGS of DEL", "left",
}

// Multus and Berth get the same definitions and the same pods, one after the other. Each difference is in the table.
func TestBesideMultus(t *testing.T) {
	b := newBoth(t, true)
	b.furnish()
	table := beside.NewTable(differences)
	all := pods(b)
	whole := true
	for _, name := range slices.Sorted(maps.Keys(all)) {
		p := all[name]
		ran := false
		t.Run(name, func(t *testing.T) {
			ran = true
			original, own := b.sees(t, "multus", name, p), b.sees(t, "berth-cni", name, p)
			if own["left"] != "" {
				t.Errorf("Berth has left\n%s", own["left"])
			}
			table.Compare(t, name, fields, original, own)
		})
		whole = whole && ran
	}
	if whole {
		table.Occurred(t)
	}
}

// sees attaches and detaches a pod by a plugin.
func (b *both) sees(t *testing.T, plugin, name string, p pod) beside.Look {
	t.Helper()
	at := nettest.Pod(t)
	r := request{plugin: plugin, container: "c-" + strings.ReplaceAll(name, " ", "-"), namespace: p.namespace, name: "web", netns: at.Ref().Path, version: p.version, keys: p.keys}
	if r.namespace == "" {
		r.namespace = "default"
	}
	if r.version == "" {
		r.version = "1.0.0"
	}
	if r.keys == "" {
		r.keys = `,"delegates":[` + b.usual() + `]`
	}
	annotations := kubetest.Object{}
	if p.networks != "" {
		annotations[nad.KeyNetworks] = p.networks
	}
	if p.first != "" {
		annotations[nad.KeyDefault] = p.first
	}
	b.pod(r.namespace, r.name, annotations)
	defer b.api.Delete("pods", r.namespace+"/"+r.name)
	empty, saw := b.has(nil, at), beside.Look{}

	r.verb = "ADD"
	result, err := b.exec(r)
	saw[beside.Refused] = fmt.Sprint(err != nil)
	if err != nil {
		t.Logf("%s refuses: %v", plugin, err)
		defer func() { // what becomes of those that got networks before is their plugins' business
			maps.DeleteFunc(saw, func(field, _ string) bool { return field != beside.Refused && field != "left" })
		}()
	} else {
		b.noting(saw, "ADD", at)
		saw["pod"], saw["node"], saw["result"] = b.has(at, at), b.has(nil, at), plain(beside.JSON(result), at)
		nettest.Eventually(t, "the pod's status", func() bool { return b.status(r.namespace, r.name) != "" })
		saw["status"] = plain(b.status(r.namespace, r.name), at)
		r.verb, r.prevResult = "CHECK", inVersion(t, result, r.version)
		_, err = b.exec(r)
		saw["answer to CHECK"] = fmt.Sprint(err == nil)
		b.noting(saw, "CHECK", at)
	}
	r.verb = "DEL"
	_, err = b.exec(r)
	saw["answer to DEL"] = fmt.Sprint(err)
	b.noting(saw, "DEL", at)
	saw["left"] = strings.Join(append(b.files(), b.links(at)...), "\n") + cmp.Diff(empty, b.has(nil, at))
	nettest.Delete(t, at)
	must(t, clear(b.disk))
	nettest.Eventually(t, "the node to be as it was", func() bool { return b.has(nil, at) == empty })
	return saw
}

// inVersion is a result in a version, as libcni gives a plugin its own result back.
func inVersion(t *testing.T, raw []byte, version string) []byte {
	t.Helper()
	result, err := create.CreateFromBytes(raw)
	must(t, err)
	result, err = result.GetAsVersion(version)
	must(t, err)
	raw, err = json.Marshal(result)
	must(t, err)
	return raw
}

// clear empties a folder.
func clear(dir string) error {
	all, err := os.ReadDir(dir)
	for _, e := range all {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	return err
}

// noting notes the executions of plugins for a verb.
func (b *both) noting(saw beside.Look, verb string, at *ns.Netns) {
	for _, e := range b.executions() {
		saw["order of "+verb] += e.what + "\n"
		saw["CNI_ARGS of "+verb] += e.what + ": " + plain(e.args, at) + "\n"
		saw["stdin of "+verb] += e.what + ": " + plain(beside.JSON([]byte(e.stdin)), at) + "\n"
	}
}
