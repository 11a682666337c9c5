package networks

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kube/kubetest"
	"github.com/berth-net/berth/internal/nad"
	"github.com/berth-net/berth/internal/nettest"
)

// multusFiles lists what libcni and Multus keep of pods below the node's root.
func (n *node) multusFiles() (all []string) {
	n.t.Helper()
	must(n.t, filepath.WalkDir(filepath.Join(n.Root, "var/lib/cni"), func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			all = append(all, strings.TrimPrefix(path, n.Root+"/var/lib/cni/"))
		}
		return err
	}))
	return all
}

// A node's CNI is Multus itself, and is switched under running pods: Berth takes Multus's files over, pods keep all their networks, and
// their DELs, which name Berth's network, give everything back: of a pod that is there, of one that is gone, and of one whose agent is
// away, while the API server is away and has no definitions any more.
func TestTakeOverFromMultus(t *testing.T) {
	b := newBoth(t, false)
	must(t, os.Symlink(filepath.Join(b.peers, "multus"), filepath.Join(b.plugins, "multus")))
	cache := filepath.Join(b.Root, "var/lib/cni")
	list, err := libcni.NetworkConfFromBytes(fmt.Appendf(nil,
		`{"cniVersion":"1.0.0","name":"multus-cni-network","plugins":[{"type":"multus","kubeconfig":%q,"binDir":%q,"cniDir":%q,"delegates":[{"cniVersion":"1.0.0","name":"one","type":"ptp",%s}]}]}`,
		b.kube, b.plugins, filepath.Join(cache, "multus"), b.local("10.1.0.0/24")))
	must(t, err)
	b.define("two", `{"cniVersion":"1.0.0","name":"two","type":"bridge","bridge":"br9",`+b.local("10.2.0.0/24")+`}`)
	b.define("three", `{"cniVersion":"0.4.0","name":"three","plugins":[{"type":"macvlan","master":"br8",`+b.local("10.3.0.0/24")+`},{"type":"tuning"}]}`)
	nettest.Eventually(t, "the agent to have the node's pool", func() bool { return strings.Contains(b.state().String(), "10.244.7.0/24") })
	b.empty = b.state()
	runtime := libcni.NewCNIConfigWithCacheDir([]string{b.plugins}, cache, &invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: io.Discard}})
	names := []string{"asked", "away", "dead"}
	pods, inside := map[string]*ns.Netns{}, map[string]string{}
	for _, name := range names {
		b.pod("default", name, kubetest.Object{nad.KeyNetworks: "two,three"})
		pods[name] = nettest.Pod(t)
		_, err := runtime.AddNetworkList(t.Context(), list, &libcni.RuntimeConf{
			ContainerID: name, NetNS: pods[name].Ref().Path, IfName: "eth0",
			Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", name}, {"K8S_POD_INFRA_CONTAINER_ID", name}, {"K8S_POD_UID", "uid-" + name}},
		})
		must(t, err)
		inside[name] = nettest.Snapshot(t, pods[name]).Deliberate().String()
	}
	nettest.Delete(t, pods["dead"])
	b.api.Delete("network-attachment-definitions", "default/two")
	b.api.Delete("network-attachment-definitions", "default/three")
	b.api.Break(http.StatusServiceUnavailable)
	if got := b.files(); len(got) != 9 {
		t.Fatalf("Multus's pods have the addresses %v", got)
	}
	found, err := b.adopt()
	must(t, err)
	var have []string
	for _, at := range found.Attachments {
		have = append(have, at.ContainerID+" "+at.Ifname+" "+at.Outcome)
	}
	slices.Sort(have)
	var want []string
	for _, name := range names {
		outcome := api.OutcomeAdopted
		if name == "dead" {
			outcome = api.OutcomeGone
		}
		want = append(want, name+" eth0 "+outcome, name+" net1 "+outcome, name+" net2 "+outcome)
	}
	if !slices.Equal(have, want) {
		t.Errorf("adopted %q, want %q", have, want)
	}
	nettest.Eventually(t, "what the dead pod had to be given back", func() bool { return len(b.files()) == 6 })
	_, err = b.Exec("DEL", "asked", pods["asked"].Ref().Path)
	must(t, err)
	if got := b.links(pods["asked"]); len(got) > 0 || len(b.files()) != 3 {
		t.Errorf("after DEL the pod has %v, and host-local %v", got, b.files())
	}
	if got := nettest.Snapshot(t, pods["away"]).Deliberate().String(); got != inside["away"] {
		t.Errorf("another pod has\n%s\nand had\n%s", got, inside["away"])
	}
	b.Crash()
	_, err = b.Exec("DEL", "away", pods["away"].Ref().Path)
	must(t, err)
	nettest.Delete(t, pods["away"])
	b.Again()
	b.nothingLeft()
	if got := b.multusFiles(); len(got) > 0 {
		t.Errorf("left of Multus are %v", got)
	}
}
