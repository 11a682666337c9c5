package cluster

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-net/berth/api/v1alpha1"
	"github.com/berth-net/berth/internal/nettest"
)

// agentPod returns the name of the pod of a node's agent; "": there is none.
func (c *control) agentPod(n *node) string {
	c.t.Helper()
	for _, p := range c.list(agentPods) {
		if p.Spec.NodeName == n.name {
			return p.Metadata.Name
		}
	}
	return ""
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
// network's link has the addresses that the node is to give its pods: until then no runtime takes Berth for the node's network.
func TestMigrate(t *testing.T) {
	for way, manifestName := range map[addressing]string{ofNodes: "berth.yaml", ofPools: "pools.yaml"} {
		t.Run(string(way), func(t *testing.T) {
			c, _ := startEmpty(t, 2)
			c.apply(manifest(t, manifestName))
			if way == ofPools {
				c.mustKubectl("wait", "--for=condition=Established", "crd/ippools.berth.dev", "crd/nodenetworks.berth.dev")
				c.apply(sharedPools)
			}
			c.waitWhole()
			c.reach(c.deploy("web", 4, 0))
			goes := c.nodes[1]
			c.takeBerthAway(goes, c.nodes[0])
			c.comeFromAnother(goes, way)
			c.reach(c.settle("after the node has come back", "web", 4))
			if len(ips(c.pods("web"), goes.name)) != 4 {
				t.Errorf("two pods do not come back to %s: %v", goes.name, c.pods("web"))
			}
		})
	}
}

// takeBerthAway takes Berth from a node, and leaves the other one as it is.
func (c *cluster) takeBerthAway(goes, stays *node) {
	t := c.t
	t.Helper()
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
}

// comeFromAnother gives a node to Berth whose other network has the addresses, until that network is gone.
func (c *cluster) comeFromAnother(n *node, way addressing) {
	t := c.t
	t.Helper()
	nettest.Run(t, n.net, "ip link add cni0 type bridge")
	for _, cidr := range c.allFor(n, way) {
		nettest.Run(t, n.net, "ip addr add "+netip.PrefixFrom(cidr.Addr().Next(), cidr.Bits()).String()+" dev cni0")
	}
	nettest.Run(t, n.net, "ip link set cni0 up")
	c.mustKubectl("label", "node", n.name, "berth.dev/agent=yes", "--overwrite")
	nettest.Eventually(t, "the agent to say that cni0 has the addresses", func() bool { return strings.Contains(c.refusal(n, way), "cni0") })
	if _, err := os.Stat(filepath.Join(n.disk, "etc/cni/net.d/10-berth.conflist")); err == nil {
		t.Error("the runtime takes Berth for the network of a node whose addresses another network has")
	}
	nettest.Run(t, n.net, "ip link del cni0")
	c.waitWhole()
	c.mustKubectl("uncordon", n.name)
}

// allFor returns the CIDRs whose addresses the node's pods can get.
func (c *cluster) allFor(n *node, way addressing) (cidrs []netip.Prefix) {
	c.t.Helper()
	texts := c.cidrs(n.name)
	if way == ofPools {
		texts = blue
	}
	for _, text := range texts {
		cidrs = append(cidrs, netip.MustParsePrefix(text))
	}
	return cidrs
}

// refusal returns what the agent of a node says of addresses that it cannot take; "": nothing.
func (c *cluster) refusal(n *node, way addressing) (said string) {
	c.t.Helper()
	if way == ofPools {
		for _, is := range c.share(n.name).Status.Conditions {
			if is.Type == v1alpha1.ConditionRefused {
				said = is.Message
			}
		}
		return said
	}
	logs, _ := c.kubectl("logs", "--namespace=kube-system", c.agentPod(n), "-c", "berthd")
	for line := range strings.Lines(logs) {
		if strings.Contains(line, "could not take the addresses that the cluster has given to this node") {
			said += line
		}
	}
	return said
}
