package networks

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
)

// runtime is a container runtime with another CNI: the libcni of runtimes, with its cache below the node's root.
type runtime struct {
	*node
	*libcni.CNIConfig
}

func (n *node) runtime() runtime {
	return runtime{n, libcni.NewCNIConfigWithCacheDir([]string{n.plugins}, filepath.Join(n.Root, "var/lib/cni"), nil)}
}

// attach attaches a pod to the network that the node's former CNI gives to all, and to the others.
func (r runtime) attach(container string, pod *ns.Netns, others ...string) {
	r.t.Helper()
	for i, list := range append([]string{r.pods()}, others...) {
		ifname := "eth0"
		if i > 0 {
			ifname = fmt.Sprintf("net%d", i)
		}
		l, err := libcni.NetworkConfFromBytes([]byte(list))
		must(r.t, err)
		_, err = r.AddNetworkList(r.t.Context(), l, &libcni.RuntimeConf{
			ContainerID: container, NetNS: pod.Ref().Path, IfName: ifname,
			Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", container}},
		})
		must(r.t, err)
	}
}

// pods is the former CNI's network.
func (n *node) pods() string {
	return `{"cniVersion":"1.0.0","name":"cbr0","plugins":[{"type":"bridge","bridge":"br9",` + n.local("10.2.0.0/24") + `},{"type":"tuning"}]}`
}

func (n *node) storage() string {
	return `{"cniVersion":"0.4.0","name":"storage","plugins":[{"type":"macvlan","master":"br8",` + n.local("10.3.0.0/24") + `}]}`
}

// adopt runs `berth adopt`, and returns what it says.
func (n *node) adopt(args ...string) (found api.Adopted, err error) {
	n.t.Helper()
	out, err := n.Berth(n.t.Context(), append([]string{"adopt", "-o", "json", "--bin-dir", n.plugins}, args...)...)
	must(n.t, json.Unmarshal([]byte(out), &found))
	return found, err
}

// wantAdopted wants these attachments, each "CONTAINER IFNAME OUTCOME", without a problem.
func (n *node) wantAdopted(args []string, want ...string) {
	n.t.Helper()
	found, err := n.adopt(args...)
	must(n.t, err)
	var have []string
	for _, at := range found.Attachments {
		have = append(have, at.ContainerID+" "+at.Ifname+" "+at.Outcome)
		if dry := slices.Contains(args, "--dry-run"); (at.ID == "") != dry && at.Outcome != api.OutcomeKnown {
			n.t.Errorf("%s of %s has the ID %q", at.Ifname, at.ContainerID, at.ID)
		}
	}
	if !slices.Equal(have, want) {
		n.t.Errorf("adopted %q, want %q", have, want)
	}
}

// cached lists the files of libcni's cache.
func (n *node) cached() (names []string) {
	n.t.Helper()
	entries, err := os.ReadDir(filepath.Join(n.Root, "var/lib/cni/results"))
	must(n.t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// nothingFormer wants that nothing is left, of the former CNI's files either.
func (n *node) nothingFormer() {
	n.t.Helper()
	n.nothingLeft()
	if left := n.cached(); len(left) > 0 {
		n.t.Errorf("libcni's cache has kept %v", left)
	}
}

// A node's CNI is switched under running pods: these keep what they have, their DELs, which name Berth's network, have the former
// plugins give it back, and so do a DEL while the agent is away and the end of a pod that nobody tells of.
func TestTakeOver(t *testing.T) {
	n := newNode(t)
	r := n.runtime()
	pods := map[string]*ns.Netns{}
	for _, name := range []string{"asked", "away", "dead", "silent"} {
		pods[name] = nettest.Pod(t)
		r.attach(name, pods[name], n.storage())
	}
	nettest.Delete(t, pods["dead"])
	inside := map[string]string{}
	for _, name := range []string{"asked", "away", "silent"} {
		inside[name] = nettest.Snapshot(t, pods[name]).Deliberate().String()
	}
	nettest.Eventually(t, "the kernel to end the dead pod's link", func() bool { // one of each living pod stays; their other ends are in the pods
		return strings.Count("\n"+n.state().String(), "\nlink veth") == len(inside)
	})
	before, links := n.cached(), n.state().Deliberate().String() // the kernel is still giving the ports link-local addresses
	want := func(outcome, dead string) (all []string) {
		for _, name := range []string{"asked", "away", "dead", "silent"} {
			o := outcome
			if name == "dead" {
				o = dead
			}
			all = append(all, name+" eth0 "+o, name+" net1 "+o)
		}
		return all
	}
	n.wantAdopted([]string{"--dry-run"}, want(api.OutcomeAdopted, api.OutcomeGone)...)
	if got, now := n.cached(), n.state().Deliberate().String(); !slices.Equal(got, before) || now != links || len(n.files()) != 8 {
		t.Errorf("a dry run changes something: the cache has %v, and host-local %v; the node had\n%s\nand has\n%s", got, n.files(), links, now)
	}
	n.wantAdopted(nil, want(api.OutcomeAdopted, api.OutcomeGone)...)
	nettest.Eventually(t, "what the dead pod had to be given back", func() bool { return len(n.files()) == 6 && len(n.cached()) == 6 })
	n.wantAdopted(nil, slices.DeleteFunc(want(api.OutcomeKnown, ""), func(s string) bool { return strings.HasPrefix(s, "dead") })...)
	n.Crash()
	n.Again()
	for _, name := range []string{"asked", "away", "silent"} {
		if got := n.links(pods[name]); !slices.Equal(got, []string{"eth0", "net1"}) {
			t.Errorf("after a restart %s has %v", name, got)
		}
		if got := nettest.Snapshot(t, pods[name]).Deliberate().String(); got != inside[name] {
			t.Errorf("after a restart %s has\n%s\nand had\n%s", name, got, inside[name])
		}
	}
	n.Audit(t)
	_, err := n.Exec("DEL", "asked", pods["asked"].Ref().Path)
	must(t, err)
	if len(n.links(pods["asked"])) != 0 || len(n.files()) != 4 || len(n.cached()) != 4 {
		t.Errorf("after DEL the pod has %v, host-local %v, and libcni's cache %v", n.links(pods["asked"]), n.files(), n.cached())
	}
	n.Crash()
	_, err = n.Exec("DEL", "away", pods["away"].Ref().Path)
	must(t, err)
	nettest.Delete(t, pods["away"])
	nettest.Delete(t, pods["silent"])
	n.Again()
	n.nothingFormer()
}

// A plugin of an adopted pod is missing, and its DEL fails later: DEL is answered all the same, what is owed is tried again, and the
// former CNI's file stays until nothing is owed.
func TestTakeOverFails(t *testing.T) {
	n := withFlaky(t)
	r := n.runtime()
	pod := nettest.Pod(t)
	r.attach("c1", pod, `{"cniVersion":"1.0.0","name":"two","plugins":[{"type":"flaky"}]}`)
	n.wantAdopted(nil, "c1 eth0 adopted", "c1 net1 adopted")
	hidden := filepath.Join(n.plugins, "hidden")
	must(t, os.Rename(filepath.Join(n.plugins, "flaky"), hidden))
	_, err := n.Exec("DEL", "c1", pod.Ref().Path)
	must(t, err)
	owes := func(why string) {
		t.Helper()
		if out, err := n.Berth(t.Context(), "owed", "-o", "wide"); err != nil || !strings.Contains(out, "network two as net1") || !strings.Contains(out, why) {
			t.Errorf("berth owed says %v\n%s", err, out)
		}
		if got := n.cached(); !slices.Equal(got, []string{"two-c1-net1"}) || len(n.links(pod)) != 0 {
			t.Errorf("libcni's cache has %v, and the pod %v", got, n.links(pod))
		}
	}
	owes("flaky")
	n.tell("DEL", "fail")
	must(t, os.Rename(hidden, filepath.Join(n.plugins, "flaky")))
	_, err = n.Berth(t.Context(), "owed", "retry")
	must(t, err)
	nettest.Eventually(t, "the plugin's own error", func() bool {
		out, _ := n.Berth(t.Context(), "owed", "-o", "wide")
		return strings.Contains(out, "told to fail")
	})
	owes("told to fail")
	n.tell("DEL", "")
	_, err = n.Berth(t.Context(), "owed", "retry")
	must(t, err)
	n.nothingFormer()
}

// A file that nobody can read is a problem, of which the command tells after it has adopted the rest.
func TestTakeOverProblem(t *testing.T) {
	n := newNode(t)
	r := n.runtime()
	pod := nettest.Pod(t)
	r.attach("c1", pod)
	broken := filepath.Join(n.Root, "var/lib/cni/results/cbr0-c2-eth0")
	must(t, os.WriteFile(broken, []byte(`{"kind":`), 0o600))
	found, err := n.adopt()
	if err == nil || len(found.Attachments) != 1 || found.Attachments[0].Outcome != api.OutcomeAdopted || len(found.Problems) != 1 ||
		!strings.HasSuffix(found.Problems[0].Path, "cbr0-c2-eth0") {
		t.Errorf("%v, %+v", err, found)
	}
	must(t, os.Remove(broken))
	_, err = n.Exec("DEL", "c1", pod.Ref().Path)
	must(t, err)
	n.nothingFormer()
}

// DEL, GC and a kill of the agent beside an adoption: GC releases nothing, a pod is adopted once, and nothing stays of any.
func TestTakeOverPairs(t *testing.T) {
	n := newNode(t)
	r := n.runtime()
	pods := map[string]*ns.Netns{}
	for i := range 6 {
		name := fmt.Sprintf("c%d", i)
		pods[name] = nettest.Pod(t)
		r.attach(name, pods[name])
	}
	done := make(chan error, 2)
	go func() { _, err := n.Berth(t.Context(), "adopt", "--bin-dir", n.plugins); done <- err }()
	go func() { _, err := n.Exec("DEL", "c5", pods["c5"].Ref().Path); done <- err }()
	must(t, <-done, <-done)
	n.Crash()
	nettest.Delete(t, pods["c5"])
	n.Again()
	if _, err := n.adopt(); err != nil {
		t.Error(err)
	}
	_, err := n.Exec("GC", "", "", `"cni.dev/valid-attachments":[]`)
	must(t, err)
	if got, err := n.API.List(t.Context(), api.Filter{Network: "cbr0"}); err != nil || len(got) < 5 {
		t.Errorf("after GC: %v, %+v", err, got)
	}
	for name, pod := range pods {
		_, err := n.Exec("DEL", name, pod.Ref().Path)
		must(t, err)
	}
	n.nothingFormer()
}

// The ledger of adopted pods is lost: libcni's files of these pods are still there, and another adoption finds them.
func TestAdoptAfterLoss(t *testing.T) {
	n := newNode(t)
	pod := nettest.Pod(t)
	n.runtime().attach("c1", pod, n.storage())
	n.wantAdopted(nil, "c1 eth0 adopted", "c1 net1 adopted")
	n.Crash()
	must(t, os.Remove(root.Dir(n.Root).Ledger()))
	n.Again()
	n.wantAdopted(nil, "c1 eth0 adopted", "c1 net1 adopted")
	_, err := n.Exec("DEL", "c1", pod.Ref().Path)
	must(t, err)
	if len(n.links(pod)) != 0 || len(n.files()) != 0 || len(n.cached()) != 0 {
		t.Errorf("after DEL the pod has %v, host-local %v, and libcni's cache %v", n.links(pod), n.files(), n.cached())
	}
	n.Audit(t)
}
