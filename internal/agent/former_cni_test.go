package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containernetworking/cni/pkg/version"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
)

// formerPlugins are a former CNI's plugins, in memory.
type formerPlugins struct {
	version.PluginDecoder
	mu   sync.Mutex
	runs []string // "PLUGIN VERB CONTAINER IFNAME"
}

func (p *formerPlugins) FindInPath(plugin string, _ []string) (string, error) { return plugin, nil }

func (p *formerPlugins) ExecPlugin(_ context.Context, path string, _ []byte, environ []string) ([]byte, error) {
	get := func(key string) string {
		i := slices.IndexFunc(environ, func(e string) bool { return strings.HasPrefix(e, key+"=") })
		return strings.TrimPrefix(environ[i], key+"=")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.runs = append(p.runs, strings.Join([]string{filepath.Base(path), get("CNI_COMMAND"), get("CNI_CONTAINERID"), get("CNI_IFNAME")}, " "))
	return nil, nil
}

// formerly is a rig on whose node another CNI has been.
type formerly struct {
	*rig
	formerPlugins
}

func startFormerly(t *testing.T) *formerly {
	f := &formerly{rig: start(t)}
	f.node.Delegates.Exec = &f.formerPlugins
	return f
}

// left writes what libcni has left of an attachment by plugins of these types, and returns its file.
func (f *formerly) left(network, container, ifname, netns string, plugins ...string) string {
	f.t.Helper()
	var list []map[string]string
	for _, p := range plugins {
		list = append(list, map[string]string{"type": p})
	}
	config, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": network, "plugins": list})
	must(f.t, err)
	result := map[string]any{"cniVersion": "1.0.0", "interfaces": []any{map[string]any{"name": ifname, "sandbox": netns}}, "ips": []any{map[string]any{"address": "10.1.0.2/24", "interface": 0}}}
	if netns == "" {
		result = map[string]any{"cniVersion": "1.0.0"}
	}
	raw, err := json.Marshal(map[string]any{
		"kind": "cniCacheV1", "containerId": container, "config": config, "ifName": ifname, "networkName": network, "netns": netns, "result": result,
		"cniArgs": [][2]string{{"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", container}},
	})
	must(f.t, err)
	path := filepath.Join(string(f.root), "var/lib/cni/results", fmt.Sprintf("%s-%s-%s", network, container, ifname))
	must(f.t, os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, raw, 0o600))
	return path
}

// pod is a pod whose interfaces a former CNI has made.
func (f *formerly) pod(ifnames ...string) *ns.Netns {
	at := nettest.Pod(f.t)
	for _, name := range ifnames {
		nettest.Run(f.t, at, "ip link add "+name+" type bridge")
	}
	return at
}

// adopts wants an adoption to answer this: "CONTAINER IFNAME OUTCOME", and a part of each problem.
func (f *formerly) adopts(want []string, problems ...string) {
	f.t.Helper()
	for _, dry := range []bool{true, false} {
		got, err := f.Adopt(f.t.Context(), api.AdoptRequest{DryRun: dry})
		must(f.t, err)
		var have []string
		for _, a := range got.Attachments {
			have = append(have, a.ContainerID+" "+a.Ifname+" "+a.Outcome)
		}
		if !slices.Equal(have, want) || len(got.Problems) != len(problems) {
			f.t.Errorf("dry run %t: %q, problems %+v; want %q and %q", dry, have, got.Problems, want, problems)
			continue
		}
		for i, part := range problems {
			if !strings.Contains(got.Problems[i].Path+": "+got.Problems[i].Reason, part) {
				f.t.Errorf("dry run %t: problem %+v, want %q", dry, got.Problems[i], part)
			}
		}
	}
}

// ran wants that just these plugins were executed since the last call.
func (f *formerly) ran(want ...string) {
	f.t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if !slices.Equal(f.runs, want) {
		f.t.Errorf("executed %q, want %q", f.runs, want)
	}
	f.runs = nil
}

// A pod's attachments come one after the other, and are known from then on, after a restart as well. GC leaves them, also if it asks for
// their network; nobody executes a plugin; and one DEL by Berth's name takes them in reverse, with their files.
func TestAdoptFormer(t *testing.T) {
	f := startFormerly(t)
	at := f.pod("eth0", "net1", "net2").Ref()
	files := []string{f.left("net", "c1", "eth0", at.Path, "bridge", "portmap"), f.left("storage", "c1", "net1", at.Path, "macvlan")}
	f.adopts([]string{"c1 eth0 adopted", "c1 net1 adopted"})
	files = append(files, f.left("backup", "c1", "net2", at.Path, "ptp"))
	f.adopts([]string{"c1 eth0 known", "c1 net1 known", "c1 net2 adopted"})
	f.restart()
	f.node.Delegates.Exec = &f.formerPlugins
	f.adopts([]string{"c1 eth0 known", "c1 net1 known", "c1 net2 known"})
	for _, network := range []string{"net", "storage", ":storage"} {
		if d, err := f.GC(t.Context(), api.GCRequest{Network: network}, now()); err != nil || d.Released != 0 {
			t.Errorf("GC of %s: %+v, %v", network, d, err)
		}
	}
	f.Sweep(t.Context())
	f.wantClean()
	f.ran()
	req := request("c1", nettest.Pod(t))
	req.Netns = api.Netns(at)
	if _, err := f.tryAdd(req); err == nil {
		t.Error("an ADD takes the former CNI's interface for its own")
	}
	old := now()
	old.Started = 1 // the DEL's process began before the adoption
	if _, known, err := f.Delete(t.Context(), api.Filter{Network: "another", Container: "c1", Ifname: "eth0"}, true, old); err != nil || !known {
		t.Errorf("DEL: known %t, %v", known, err)
	}
	f.ran("ptp DEL c1 net2", "macvlan DEL c1 net1", "portmap DEL c1 eth0", "bridge DEL c1 eth0")
	for _, path := range files {
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// A pod counts as gone only if that is certain: its plugins would give its address to another pod.
func TestAdoptFormerGone(t *testing.T) {
	f := startFormerly(t)
	gone, mine, shared := nettest.Pod(t), nettest.Pod(t), f.pod("eth0")
	path := gone.Ref().Path
	nettest.Delete(t, gone)
	f.left("cbr0", "c1", "eth0", path, "bridge")
	f.add(request("c9", mine))
	f.left("cbr0", "c2", "eth0", mine.Ref().Path, "bridge") // another pod's by now
	f.left("cbr0", "c9", "eth0", mine.Ref().Path, "bridge") // Berth has attached the container since
	unseen := f.left("cbr0", "c3", "eth0", "/nowhere/netns/c3", "bridge")
	own := f.left("cbr0", "c4", "eth0", "/proc/self/ns/net", "bridge")
	f.left("cbr0", "c5", "eth0", "", "bridge")
	f.left("cbr0", "c6", "eth0", shared.Ref().Path, "bridge", "berth-cni")
	f.left("net", "c7", "eth0", shared.Ref().Path, "berth-cni") // Berth's own
	f.adopts([]string{"c1 eth0 gone", "c2 eth0 gone", "c5 eth0 adopted", "c9 eth0 known"}, "its folder is not there", "the node's own network namespace", "plugin 2 of network cbr0 is berth-cni")
	nettest.Eventually(t, "the pods that are gone to be released", func() bool { return len(f.List(api.Filter{Network: "cbr0"})) == 1 })
	f.mu.Lock()
	slices.Sort(f.runs)
	f.mu.Unlock()
	f.ran("bridge DEL c1 eth0", "bridge DEL c2 eth0")
	must(t, os.Remove(unseen), os.Remove(own))
	f.Sweep(t.Context()) // which leaves c5, of whose network namespace nobody knows
	if got := f.List(api.Filter{Container: "c5"}); len(got) != 1 || got[0].State != api.StateAttached {
		t.Errorf("after a sweep: %+v", got)
	}
	if has, err := mine.HasLink("eth0"); err != nil || !has {
		t.Errorf("Berth's pod has lost its interface: %v", err)
	}
}

// A network namespace of two containers is one of a pod that is gone and of one that lives, and nobody can tell which.
func TestAdoptFormerTwice(t *testing.T) {
	f := startFormerly(t)
	at := f.pod("eth0").Ref()
	f.left("cbr0", "c1", "eth0", at.Path, "bridge")
	f.adopts([]string{"c1 eth0 adopted"})
	f.left("cbr0", "c2", "eth0", at.Path, "bridge")
	f.adopts([]string{"c1 eth0 known"}, "is the network namespace of container c1, too")
	f.ran()
}

// CHECK of a former CNI's pod, by Berth's name for the network, compares with what that CNI's result says.
func TestAdoptFormerChecked(t *testing.T) {
	f := startFormerly(t)
	at := f.pod("eth0")
	f.left("cbr0", "c1", "eth0", at.Ref().Path, "bridge")
	f.adopts([]string{"c1 eth0 adopted"})
	prev := fmt.Sprintf(`"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":%q}],"ips":[{"address":"10.1.0.2/24","interface":0}]}`, at.Ref().Path)
	must(t, f.Check(t.Context(), request("c1", at, prev), now()))
	f.ran("bridge CHECK c1 eth0")
	nettest.Run(t, at, "ip link del eth0")
	wantError(t, f.Check(t.Context(), request("c1", at, prev), now()), 103, "eth0")
}
