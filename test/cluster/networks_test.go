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
func granted(t *testing.T, manifest string) string {
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

// With deploy/kubernetes/networks.yaml, pods of a real cluster ask for networks of other plugins and of Berth. They get them by the agent and by
// berth-runner in their containers, get others while they run, and leave nothing: while the API server and then berth-runner is away, too.
func TestNetworks(t *testing.T) {
	c, _ := startEmpty(t, 1)
	c.loadPlugins(t)
	n := c.nodes[0]
	c.apply(granted(t, manifest(t, "networks.yaml")))
	c.mustKubectl("rollout", "status", "--namespace=kube-system", "daemonset/berth", "--timeout=120s")
	c.waitWhole()
	c.mustKubectl("wait", "--for=condition=Established", "crd/network-attachment-definitions.k8s.cni.cncf.io", "--timeout=60s")
	const ptp = `{"cniVersion":"1.0.0","type":"ptp","ipam":{"type":"host-local","subnet":"10.20%d.0.0/24"}}`
	c.apply(definition("one", fmt.Sprintf(ptp, 1)) + definition("two", fmt.Sprintf(ptp, 2)) + definition("own", `{"cniVersion":"1.0.0","type":"berth-cni"}`))
	empty := c.states()

	asking := func(name, networks string) string {
		return strings.Replace(deployment(name, 1, 0), "metadata: {labels: {app: "+name+"}}",
			"metadata: {labels: {app: "+name+"}, annotations: {"+nad.KeyNetworks+": '"+networks+"'}}", 1)
	}
	c.apply(asking("web", "one,own,two@last"))
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
	c.mustKubectl("annotate", "--overwrite", "pod", pod, nad.KeyNetworks+"=two@last,one@more")
	c.networkStatus(pod, "berth eth0 2", "default/two last 1", "default/one more 1")
	c.mustKubectl("delete", "deployment", "web", "--cascade=foreground", "--timeout=60s")
	c.nothingLeft(empty)
	if got := reserved(); len(got) != 0 {
		t.Errorf("host-local has %v", got)
	}
}
