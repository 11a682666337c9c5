//go:build e2e

package cluster

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// lentNetwork is a network whose addresses whereabouts gives.
type lentNetwork struct{ name, keys, cidr string }

// lentNetworks are two networks of Berth's own, and one of another plugin, in the order in which pods ask for them.
var lentNetworks = []lentNetwork{
	{"lan", `"type":"berth-cni","mode":"macvlan","master":"eth0"`, "10.60.0.0/24"},
	{"own", `"type":"berth-cni"`, "10.61.0.0/24"},
	{"others", `"type":"bridge","bridge":"` + lentBridge + `"`, "10.62.0.0/24"},
}

// lentBridge is a bridge of each node. The plugin bridge makes it, and nobody deletes it.
const lentBridge = "br9"

// The interfaces that pods have in these networks.
const inLan, inOwn, inOthers = "net1", "net2", "net3"

// lentPods is how many pods there are on the two nodes.
const lentPods = 4

// furnishWhereabouts gives the cluster whereabouts, as its project has it: the definitions of its objects, an account with its rights, and on each node
// the plugin and its configuration.
func (c *cluster) furnishWhereabouts() {
	t := c.t
	t.Helper()
	dir := filepath.Join(programs.Tree(t), "bin/whereabouts")
	if _, err := os.Stat(filepath.Join(dir, ".stamp")); err != nil {
		programs.Missing(t, "whereabouts is missing: run `make test-e2e`")
	}
	read := func(name string) string {
		raw, err := os.ReadFile(filepath.Join(dir, name))
		must(t, err)
		return string(raw)
	}
	rights, _, cut := strings.Cut(read("whereabouts.yaml"), "---\napiVersion: v1\nkind: ConfigMap\n") // the rest is what its image runs
	if !cut {
		t.Fatal("whereabouts.yaml has no ConfigMap behind the plugin's rights")
	}
	c.apply(read("whereabouts-crds.yaml") + "---\n" + rights)
	c.mustKubectl("wait", "--for=condition=Established", "crd/ippools.whereabouts.cni.cncf.io",
		"crd/overlappingrangeipreservations.whereabouts.cni.cncf.io", "--timeout=60s")
	token := strings.TrimSpace(c.mustKubectl("create", "token", "whereabouts", "--namespace=kube-system"))
	const folder = "etc/cni/net.d/whereabouts.d/"
	for _, n := range c.nodes {
		n.mustRun(found(t, "busybox"), "cp", filepath.Join(dir, "whereabouts"), "/opt/cni/bin/")
		n.write(folder+"whereabouts.kubeconfig", c.kubeconfig(token))
		n.write(folder+"whereabouts.conf", `{"datastore":"kubernetes","kubernetes":{"kubeconfig":"/`+folder+`whereabouts.kubeconfig"}}`)
	}
}

// lent returns what whereabouts has given, by its pools' allocations: "POD INTERFACE CONTAINER" by the addresses. It fails the test unless
// whereabouts has each address reserved beside its pool, too.
func (c *cluster) lent() map[string]string {
	c.t.Helper()
	const path = "/apis/whereabouts.cni.cncf.io/v1alpha1/namespaces/kube-system/"
	var pools struct {
		Items []struct {
			Spec struct {
				Range       string
				Allocations map[string]struct{ ID, PodRef, Ifname string } // by the address's distance from the range's first one
			}
		}
	}
	c.get(&pools, path+"ippools")
	all := map[string]string{}
	for _, p := range pools.Items {
		for distance, of := range p.Spec.Allocations {
			addr := netip.MustParsePrefix(p.Spec.Range).Addr()
			steps, err := strconv.Atoi(distance)
			must(c.t, err)
			for range steps {
				addr = addr.Next()
			}
			all[addr.String()] = of.PodRef + " " + of.Ifname + " " + of.ID
		}
	}
	var reservations struct {
		Items []struct{ Metadata struct{ Name string } }
	}
	c.get(&reservations, path+"overlappingrangeipreservations")
	var names []string
	for _, r := range reservations.Items {
		names = append(names, r.Metadata.Name)
	}
	if slices.Sort(names); !slices.Equal(names, slices.Sorted(maps.Keys(all))) {
		c.t.Errorf("whereabouts has reserved %v, and its pools have given %v", names, all)
	}
	return all
}

// inNetworks waits until a pod's status tells of all its networks, and returns the pod's address in each of whereabouts's, by the interfaces.
func (c *cluster) inNetworks(pod string) map[string]string {
	c.t.Helper()
	want := []string{"berth eth0 2"}
	for i, l := range lentNetworks {
		want = append(want, fmt.Sprintf("default/%s net%d 1", l.name, i+1))
	}
	c.networkStatus(pod, want...)
	var all []nadv1.NetworkStatus
	must(c.t, json.Unmarshal([]byte(c.statusOf(pod)), &all))
	addrs := map[string]string{}
	for _, s := range all[1:] {
		addrs[s.Interface] = s.IPs[0]
	}
	return addrs
}

// attachLent makes pods that have the networks, on both nodes. Each address is of its network's range, whereabouts has given it to that pod
// alone, and the pod is reached by it.
func (c *cluster) attachLent(what string, linger time.Duration) []pod {
	t := c.t
	t.Helper()
	var names []string
	for _, l := range lentNetworks {
		names = append(names, l.name)
	}
	c.apply(asking(deployment("web", lentPods, linger), strings.Join(names, ",")))
	all := c.settle(what, "web", lentPods)
	want, addrs := map[string]string{}, map[string]map[string]string{}
	for _, p := range all {
		name := p.Metadata.Name
		addrs[name] = c.inNetworks(name)
		container := c.at(p).caches("berth")[name].ContainerID
		for ifname, addr := range addrs[name] {
			i, _ := strconv.Atoi(strings.TrimPrefix(ifname, "net"))
			if cidr := netip.MustParsePrefix(lentNetworks[i-1].cidr); !cidr.Contains(netip.MustParseAddr(addr)) {
				t.Errorf("%s has %s in a network of %s", name, addr, cidr)
			}
			want[addr] = "default/" + name + " " + ifname + " " + container
		}
	}
	if got := c.lent(); len(want) != lentPods*len(lentNetworks) || !maps.Equal(got, want) {
		t.Errorf("whereabouts has given\n%v, and the pods have\n%v", got, want)
	}
	for _, p := range all {
		ask := []string{"ask"}
		for _, other := range all {
			name := other.Metadata.Name
			ask = append(ask, name+"="+addrs[name][inLan])
			if other.Spec.NodeName == p.Spec.NodeName { // each node has a bridge of its own
				ask = append(ask, name+"="+addrs[name][inOthers])
			}
		}
		line := c.call(p)
		if err := tell(line, ask...); err != nil {
			t.Errorf("pod %s on %s: %v", p.Metadata.Name, p.Spec.NodeName, err)
		}
		line.Close()
		if said := c.at(p).answers(addrs[p.Metadata.Name][inOwn]); !strings.HasPrefix(said, p.Metadata.Name+" ") {
			t.Errorf("%s does not reach %s by network own, but %q", p.Spec.NodeName, p.Metadata.Name, said)
		}
	}
	return all
}

// at returns the node of a pod.
func (c *cluster) at(p pod) *node {
	return c.nodes[slices.IndexFunc(c.nodes, func(n *node) bool { return n.name == p.Spec.NodeName })]
}

// noneLent waits until the ledgers have no attachment. Then neither whereabouts nor a node has anything of the pods, but for the bridge.
func (c *cluster) noneLent(empty []nettest.State) {
	c.t.Helper()
	for _, n := range c.nodes {
		nettest.Eventually(c.t, n.name+" to have released all attachments", n.released)
	}
	if left := c.lent(); len(left) > 0 {
		c.t.Errorf("the ledgers have no attachment, and whereabouts has given %v", left)
	}
	for _, n := range c.nodes {
		nettest.Run(c.t, n.net, "ip link del "+lentBridge)
	}
	c.nothingLeft(empty)
}

// Whereabouts gives the addresses of pods' networks in the whole cluster: of Berth's own, of mode macvlan and routed, and of the plugin bridge. All it gives is taken
// back when the pods go: also of pods that go while a node has no agent, or while there is no API server, without which whereabouts can do nothing.
func TestWhereabouts(t *testing.T) {
	c, _ := startEmpty(t, 2)
	c.loadPlugins(t)
	c.furnishWhereabouts()
	c.apply(granted(t, manifest(t, "networks.yaml")))
	c.mustKubectl("rollout", "status", "--namespace=kube-system", "daemonset/berth", "--timeout=120s")
	c.waitWhole()
	definitions := ""
	for _, l := range lentNetworks {
		definitions += definition(l.name, fmt.Sprintf(`{"cniVersion":"1.0.0",%s,"ipam":{"type":"whereabouts","range":%q}}`, l.keys, l.cidr))
	}
	c.apply(definitions)
	empty := c.states()

	c.attachLent("with addresses of whereabouts", 0)
	c.mustKubectl("delete", "deployment", "web", "--cascade=foreground", "--timeout=60s")
	c.noneLent(empty)
	c.lentAgentAway(empty)
	c.lentAPIServerAway(empty)
}

// lentAgentAway: pods go while one of their nodes has no agent. Whereabouts takes back what the other node's pods had, and the rest once the agent is there.
func (c *cluster) lentAgentAway(empty []nettest.State) {
	t, away, other := c.t, c.nodes[0], c.nodes[1]
	t.Helper()
	all := c.attachLent("before an agent goes", 0)
	c.mustKubectl("label", "node", away.name, "berth.dev/agent=no")
	nettest.Eventually(t, "the agent to have gone", func() bool { return c.agentPod(away) == "" })
	c.mustKubectl("delete", "deployment", "web", "--cascade=foreground", "--timeout=60s")
	nettest.Eventually(t, other.name+" to have released all attachments", other.released)
	left := c.lent()
	for _, of := range left {
		if name, _, _ := strings.Cut(strings.TrimPrefix(of, "default/"), " "); !slices.ContainsFunc(all, func(p pod) bool { return p.Metadata.Name == name && c.at(p) == away }) {
			t.Errorf("%s has its agent, and whereabouts still has %s", other.name, of)
		}
	}
	if len(left) != lentPods/len(c.nodes)*len(lentNetworks) {
		t.Errorf("while the agent is away, whereabouts has %v", left)
	}
	c.mustKubectl("label", "node", away.name, "berth.dev/agent-")
	c.noneLent(empty)
}

// lentAPIServerAway: the API server ends while pods do. Their sandboxes and all that the nodes have of them go; what whereabouts has given is
// owed, and given back once the API server is there again.
func (c *cluster) lentAPIServerAway(empty []nettest.State) {
	t := c.t
	t.Helper()
	const linger = 5 * time.Second
	all := c.attachLent("before the API server goes", linger)
	c.mustKubectl("delete", "deployment", "web")
	nettest.Eventually(t, "the kubelets to tell the pods to end", func() bool { return c.nodes[0].ending(all)+c.nodes[1].ending(all) == lentPods })
	c.api.kill()
	began := time.Now()
	for _, n := range c.nodes {
		nettest.Eventually(t, n.name+"'s sandboxes to go", func() bool {
			spaces, err := filepath.Glob(fmt.Sprintf("/proc/%d/root/run/netns/cni-*", n.first.Process.Pid))
			must(t, err)
			return len(spaces) == 0
		})
	}
	t.Logf("the pods, which go on for %s, are gone %s after the API server's end", linger, time.Since(began).Round(10*time.Millisecond))
	for i, n := range c.nodes {
		nettest.Eventually(t, n.name+" to owe what whereabouts has given", func() bool {
			owed := n.berth("owed")
			return !slices.ContainsFunc(lentNetworks, func(l lentNetwork) bool {
				return strings.Count(owed, "network "+l.name+" as ") != lentPods/len(c.nodes)
			})
		})
		for line := range strings.Lines(differs(empty[i], n.state())) {
			if !strings.Contains(line, " "+lentBridge+" ") {
				t.Errorf("%s, which owes what whereabouts has given, has of its pods %s", n.name, line)
			}
		}
		t.Logf("%s owes\n%s", n.name, n.berth("owed"))
	}
	c.api.start()
	began = time.Now()
	c.api.until("the API server to be ready again", c.ready)
	for _, d := range []*daemon{c.manager, c.scheduler} { // which would wait for up to a minute when it happens again within two
		d.kill()
		d.start()
	}
	c.noneLent(empty)
	t.Logf("whereabouts has all back %s after the API server's start", time.Since(began).Round(10*time.Millisecond))
}
