package cluster

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/beside"
	"github.com/berth-net/berth/test/programs"
)

// besideFields are the fields of a pod's look, in the order in which they are compared.
var besideFields = []string{beside.Refused, "pod", "order", "result", "status", "nil", "ports", "node"}

// nodeItself has the look of the node, while all pods are there, among those of the pods.
const nodeItself = "the node"

// besideConfig is the configuration of the node's network, but for the plugin's type: a plugin that times the one of that name.
const besideConfig = `{"cniVersion":"1.0.0","name":"all","type":"timed-%s","kubeconfig":"/etc/kubernetes/multus","clusterNetwork":"main",` +
	`"confDir":"/etc/cni/multus/net.d","cniDir":"/var/lib/cni/multus","binDir":"/opt/cni/bin","capabilities":{"portMappings":true}}`

const besideFilename = "etc/cni/net.d/00-multus.conf"

// atOnce is how many pods come at once. Multus gives the API server 250 ms for an answer. With all pods at once, on two processors, that is too short,
// and the kubelet tries again after ten seconds.
const atOnce = 5

// turn is what one of the two has made of the pods.
type turn struct {
	looks    map[string]beside.Look
	add, del time.Duration // medians of what the runtime waits for
}

// furnishMultus gives the cluster what the comparison needs, before there is an agent.
func (c *cluster) furnishMultus() {
	t, n := c.t, c.nodes[0]
	t.Helper()
	peers := programs.Peers(t, append([]string{"multus", "crictl"}, besidePlugins...)...)
	for _, name := range append([]string{"multus"}, besidePlugins...) {
		n.mustRun(found(t, "busybox"), "cp", filepath.Join(peers, name), "/opt/cni/bin/")
	}
	n.write("etc/kubernetes/multus", c.kubeconfig(admin))
	nettest.Sysctl(t, n.net, "ipv6/conf/all/forwarding", "1") // ptp turns it on, and leaves it so
	c.defineNetworks()
}

// besideMultus has a plugin, multus or berth-cni, attach and detach the pods of the comparison, and fails the test for whatever is left then.
func (c *cluster) besideMultus(plugin string) (seen turn) {
	t, n := c.t, c.nodes[0]
	t.Helper()
	n.timePlugin("timed-"+plugin, "/opt/cni/bin/"+plugin)
	n.write("var/log/cni-times", "")
	n.write(besideFilename, fmt.Sprintf(besideConfig, plugin))
	c.waitNetwork("all")
	c.waitReady(n)
	c.waitAccount()
	empty := beside.Lines(n.kept(), "")
	began := time.Now()
	defer func() {
		if t.Failed() {
			t.Logf("executions: %+v", n.timings())
		}
	}()
	for names := range slices.Chunk(slices.Sorted(maps.Keys(besidePods)), atOnce) {
		c.apply(besideManifest(names))
		nettest.Eventually(t, fmt.Sprintf("each of %v to be ready or refused by %s", names, plugin), func() bool {
			all := c.pods("beside")
			return len(all) > 0 && !slices.ContainsFunc(all, func(p pod) bool { return !p.ready() && !n.refuses(p.Metadata.Name) })
		})
	}
	t.Logf("%s has attached the pods after %s", plugin, time.Since(began).Round(10*time.Millisecond))
	seen.looks = c.looks()
	seen.looks[nodeItself] = c.nodeLook(empty)
	began = time.Now()
	c.mustKubectl("delete", "pods", "--all", "--timeout=60s")
	n.leftNothing(plugin, empty)
	t.Logf("and detached %s after their deletion", time.Since(began).Round(10*time.Millisecond))
	of := func(e timing) bool { // of pods that both attach
		return e.well && e.netns != "-" && !besidePods[e.pod].wrong
	}
	seen.add, seen.del = rank(n.times("ADD", of), 50), rank(n.times("DEL", of), 50)
	t.Logf("medians of %s: ADD %s, DEL %s", plugin, seen.add, seen.del)
	must(t, os.Remove(filepath.Join(n.disk, besideFilename)), os.RemoveAll(filepath.Join(n.disk, "var/lib/cni/networks")))
	nettest.Run(t, n.net, "ip link del br9") // no plugin deletes it
	return seen
}

// refuses reports whether an ADD of a pod with a wrong request has failed. Other pods are tried again until they are there: an API
// server may be too slow for Multus.
func (n *node) refuses(name string) bool {
	n.t.Helper()
	return besidePods[name].wrong && slices.ContainsFunc(n.timings(), func(e timing) bool { return e.verb == "ADD" && !e.well && e.pod == name })
}

// waitNetwork waits until the node's containerd gives pods the network of a name.
func (c *cluster) waitNetwork(name string) {
	t, n := c.t, c.nodes[0]
	t.Helper()
	crictl := filepath.Join(programs.Peers(t, "crictl"), "crictl")
	nettest.Eventually(t, "containerd to give pods the network "+name, func() bool {
		out, err := n.run(crictl, "--runtime-endpoint=unix:///run/containerd/containerd.sock", "info")
		var info struct {
			Cniconfig struct {
				Networks []struct{ Config struct{ Name string } }
			}
		}
		return err == nil && json.Unmarshal([]byte(out), &info) == nil && slices.ContainsFunc(info.Cniconfig.Networks, func(n struct{ Config struct{ Name string } }) bool {
			return n.Config.Name == name
		})
	})
}

// kept is the node's state without what stays when a bridge has no port.
func (n *node) kept() nettest.State { return n.state().But([]string{"link br9 "}) }

// leftNothing waits until the node is as it was: links, addresses, routes and limits, and rules that have a pod's address, host-local's reservations,
// network namespaces, what libcni and Multus keep, and the agent's ledger.
func (n *node) leftNothing(plugin string, empty []string) {
	n.t.Helper()
	var left []string
	for end := time.Now().Add(nettest.Deadline); ; time.Sleep(50 * time.Millisecond) {
		state := n.kept()
		left = append(added(empty, beside.Lines(state, "")), added(beside.Lines(state, ""), empty)...)
		for line := range strings.Lines(state.String()) {
			if strings.Contains(line, "10.50.") {
				left = append(left, line)
			}
		}
		for _, addresses := range n.reservations() {
			left = append(left, fmt.Sprint(addresses))
		}
		for _, glob := range []string{"var/lib/cni/results/all-*", "var/lib/cni/multus/*", "var/lib/cni/multus/results/*"} {
			files, err := filepath.Glob(filepath.Join(n.disk, glob))
			must(n.t, err)
			left = append(left, slices.DeleteFunc(files, func(f string) bool { return filepath.Base(f) == "results" })...)
		}
		spaces, err := filepath.Glob(fmt.Sprintf("/proc/%d/root/run/netns/cni-*", n.first.Process.Pid))
		must(n.t, err)
		left = append(left, spaces...)
		if plugin == "berth-cni" && !n.released() {
			left = append(left, "attachments in the ledger")
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(end) {
			n.t.Errorf("%s has left\n%s", plugin, strings.Join(left, "\n"))
			return
		}
	}
}

// compareWithMultus fails the test for each difference that is not known, and each known one that there is no more.
func (c *cluster) compareWithMultus(original, own turn) {
	c.t.Helper()
	table := beside.NewTable(besideDifferences)
	for name := range original.looks {
		table.Compare(c.t, name, besideFields, original.looks[name], own.looks[name])
	}
	table.Occurred(c.t)
}
