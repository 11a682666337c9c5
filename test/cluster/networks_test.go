package cluster

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nad"
	"github.com/berth-net/berth/internal/nettest"
)

// definition is the manifest of a network attachment definition.
func definition(name, config string) string {
	return fmt.Sprintf("apiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\nmetadata: {name: %s}\nspec: {config: '%s'}\n---\n", name, config)
}

// networkStatus waits until a pod's status names these networks and interfaces.
func (c *cluster) networkStatus(pod string, want ...string) {
	c.t.Helper()
	var have []string
	defer func() { c.t.Logf("the status of %s says %v", pod, have) }()
	nettest.Eventually(c.t, fmt.Sprintf("the status of %s to say %v", pod, want), func() bool {
		var p struct {
			Metadata struct{ Annotations map[string]string }
		}
		c.get(&p, defaultPath+"pods/"+pod)
		var all []nadv1.NetworkStatus
		_ = json.Unmarshal([]byte(p.Metadata.Annotations[nad.KeyStatus]), &all)
		have = nil
		for _, s := range all {
			have = append(have, fmt.Sprintf("%s %s %d", s.Name, s.Interface, len(s.IPs)))
		}
		return slices.Equal(have, want)
	})
}

// granted leaves out of a manifest the capability SYS_RESOURCE, if the test's own machine does not have it: runc starts no container with more
// than the machine has.
func granted(t testing.TB, manifest string) string {
	t.Helper()
	has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, unix.CAP_SYS_RESOURCE, 0, 0, 0)
	must(t, err)
	if has == 1 {
		return manifest
	}
	line := regexp.MustCompile(`(?m)^ *- SYS_RESOURCE\n`)
	if !line.MatchString(manifest) {
		t.Fatal("the manifest does not ask for SYS_RESOURCE")
	}
	return line.ReplaceAllString(manifest, "")
}

// Multus and Berth give the same pods the same networks on a node of a real cluster, one after the other. Then, with
// deploy/kubernetes/networks.yaml, pods ask for networks of other plugins and of Berth, and for others while they run. Berth makes them by the agent
// and by berth-runner in their containers. Nothing is left of any pod.
func TestNetworks(t *testing.T) {
	c, _ := startEmpty(t, 1)
	c.loadPlugins(t)
	berth := granted(t, manifest(t, "networks.yaml"))
	c.apply(document(t, berth, "CustomResourceDefinition"))
	c.mustKubectl("wait", "--for=condition=Established", "crd/network-attachment-definitions.k8s.cni.cncf.io", "--timeout=60s")
	c.furnishMultus()
	original := c.besideMultus("multus")
	c.apply(berth)
	c.mustKubectl("rollout", "status", "--namespace=kube-system", "daemonset/berth", "--timeout=120s")
	c.waitWhole()
	c.compareWithMultus(original, c.besideMultus("berth-cni"))
	c.severalNetworks()
}

// document returns the object of a kind in a manifest.
func document(t *testing.T, manifest, kind string) string {
	t.Helper()
	all := strings.Split(manifest, "\n---\n")
	i := slices.IndexFunc(all, func(one string) bool { return strings.Contains(one, "\nkind: "+kind+"\n") })
	if i < 0 {
		t.Fatalf("the manifest has no %s", kind)
	}
	return all[i] + "\n"
}

// asking has the pods of a deployment ask for further networks.
func asking(deployment, networks string) string {
	return regexp.MustCompile(`metadata: \{labels: \{app: \w+\}`).ReplaceAllString(deployment, "${0}, annotations: {"+nad.KeyNetworks+": '"+networks+"'}")
}

// severalNetworks: a pod has networks of two other plugins and one of Berth, gets others while it runs, and goes.
func (c *cluster) severalNetworks() {
	t, n := c.t, c.nodes[0]
	t.Helper()
	c.waitNetwork("berth")
	const ptp = `{"cniVersion":"1.0.0","type":"ptp","ipam":{"type":"host-local","subnet":"10.20%d.0.0/24"}}`
	c.apply(definition("one", fmt.Sprintf(ptp, 1)) + definition("two", fmt.Sprintf(ptp, 2)) + definition("own", `{"cniVersion":"1.0.0","type":"berth-cni"}`))
	empty := c.states()

	c.apply(asking(deployment("web", 1, 0), "one,own,two@last"))
	pod := c.settle("with three further networks", "web", 1)[0].Metadata.Name
	c.networkStatus(pod, "berth eth0 2", "default/one net1 1", "default/own net2 2", "default/two last 1")
	c.reach(c.pods("web"))
	reserved := func() (files []string) {
		for _, network := range []string{"one", "two"} {
			found, err := filepath.Glob(filepath.Join(n.disk, "var/lib/cni/networks", network, "10.*"))
			must(t, err)
			files = append(files, found...)
		}
		return files
	}
	if got := reserved(); len(got) != 2 {
		t.Errorf("host-local has %v", got)
	}
	at, _ := n.inside(n.caches("berth")[pod])
	defer at.Close()
	n.hasLinks(at, "eth0", "last", "lo", "net1", "net2")
	c.mustKubectl("annotate", "--overwrite", "pod", pod, nad.KeyNetworks+"=two@last,one@more")
	c.networkStatus(pod, "berth eth0 2", "default/two last 1", "default/one more 1")
	n.hasLinks(at, "eth0", "last", "lo", "more")
	if got := reserved(); len(got) != 2 {
		t.Errorf("after the change of the annotation host-local has %v", got)
	}
	c.mustKubectl("delete", "deployment", "web", "--cascade=foreground", "--timeout=60s")
	c.nothingLeft(empty)
	if got := reserved(); len(got) != 0 {
		t.Errorf("host-local has %v", got)
	}

	// The agent and berth-runner are taken from the node before the last pod ends. What takes Berth away gives back what the other plugins have.
	c.apply(asking(deployment("late", 1, 0), "one"))
	c.settle("with one further network", "late", 1)
	c.mustKubectl("label", "node", n.name, "berth.dev/agent=no")
	nettest.Eventually(t, "the agent to have gone", func() bool { return c.agentPod(n) == "" })
	c.mustKubectl("delete", "deployment", "late", "--cascade=foreground", "--timeout=60s")
	if got := reserved(); len(got) != 1 {
		t.Errorf("without an agent host-local has %v", got)
	}
	c.apply(granted(t, strings.ReplaceAll(manifest(t, "remove-networks.yaml"), "NODE", n.name)))
	c.mustKubectl("wait", "--namespace=kube-system", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=90s", "pod/berth-remove-"+n.name)
	if got := reserved(); len(got) != 0 {
		t.Errorf("host-local has %v after Berth has gone", got)
	}
	for _, file := range n.installed() {
		if strings.Contains(file, "berth") && !strings.Contains(file, "timed-") { // timePlugin's own
			t.Errorf("left is %s", file)
		}
	}
}

// hasLinks waits until a pod's links have these names.
func (n *node) hasLinks(at *ns.Netns, want ...string) {
	n.t.Helper()
	nettest.Eventually(n.t, fmt.Sprintf("the pod to have %v", want), func() bool {
		return slices.Equal(slices.Sorted(slices.Values(linkOrder(n.t, at))), want)
	})
}
