package cluster

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
)

// agentPod returns the name of the pod of a node's agent; "": there is none.
func (c *control) agentPod(n *node) string {
	c.t.Helper()
	return strings.TrimSpace(c.mustKubectl("get", "pods", "--namespace=kube-system", "-l", "app.kubernetes.io/name=berth",
		"--field-selector=spec.nodeName="+n.name, "-o", "jsonpath={.items[*].metadata.name}"))
}

// installed lists the files of Berth's where the node's runtime looks.
func (n *node) installed() (files []string) {
	n.t.Helper()
	for _, glob := range []string{"opt/cni/bin/*", "etc/cni/net.d/*"} {
		found, err := filepath.Glob(filepath.Join(n.disk, glob))
		must(n.t, err)
		files = append(files, found...)
	}
	return files
}

// A label takes the agent from one node, and a pod what it has left there, as docs/KUBERNETES.md says: the node has nothing of
// Berth any more, and the other node goes on. Then the node comes to Berth from another network. The agent waits as long as that
// network's link has the node's addresses: until then no runtime takes Berth for the node's network.
func TestMigrate(t *testing.T) {
	c := startBare(t, 2)
	c.loadBerth(t)
	c.apply(manifest(t, "berth.yaml"))
	c.waitWhole()
	c.reach(c.deploy("web", 4, 0))
	stays, goes := c.nodes[0], c.nodes[1]

	c.mustKubectl("drain", goes.name, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=60s")
	c.mustKubectl("label", "node", goes.name, "berth.dev/agent=no")
	nettest.Eventually(t, "the agent to have gone", func() bool { return c.agentPod(goes) == "" })
	c.apply(strings.ReplaceAll(manifest(t, "remove.yaml"), "NODE", goes.name))
	c.mustKubectl("wait", "--namespace=kube-system", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=90s",
		"pod/berth-remove-"+goes.name)
	if files := goes.installed(); len(files) > 0 {
		t.Errorf("%s still has %q", goes.name, files)
	}
	if has := nettest.Snapshot(t, goes.net).Without("conntrack").String(); strings.Contains(has, "berth") || len(goes.ways()) > 0 {
		t.Errorf("%s still has something of Berth's:\n%s", goes.name, has)
	}
	if len(stays.ways()) == 0 || stays.ails() != "" {
		t.Errorf("%s has lost its ways or its agent: %s", stays.name, stays.ails())
	}

	cidr := netip.MustParsePrefix(c.cidrs(goes.name)[0])
	nettest.Run(t, goes.net, "ip link add cni0 type bridge")
	nettest.Run(t, goes.net, "ip addr add "+netip.PrefixFrom(cidr.Addr().Next(), cidr.Bits()).String()+" dev cni0")
	nettest.Run(t, goes.net, "ip link set cni0 up")
	c.mustKubectl("label", "node", goes.name, "berth.dev/agent=yes", "--overwrite")
	says := func() string {
		out, _ := c.kubectl("logs", "--namespace=kube-system", c.agentPod(goes), "-c", "berthd")
		return out
	}
	nettest.Eventually(t, "the agent to say that cni0 has the node's addresses", func() bool {
		said := says()
		return strings.Contains(said, "could not take the addresses that the cluster has given to this node") && strings.Contains(said, "cni0")
	})
	if _, err := os.Stat(filepath.Join(goes.disk, "etc/cni/net.d/10-berth.conflist")); err == nil {
		t.Error("the runtime takes Berth for the network of a node whose addresses another network has")
	}
	nettest.Run(t, goes.net, "ip link del cni0")
	c.waitWhole()
	c.mustKubectl("uncordon", goes.name)
	c.mustKubectl("scale", "deployment/web", "--replicas=0")
	nettest.Eventually(t, "the former pods to be gone", func() bool { return len(c.pods("web")) == 0 })
	c.reach(c.deploy("web", 4, 0))
}
