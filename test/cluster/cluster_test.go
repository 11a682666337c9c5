package cluster

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// cluster is a control plane and nodes.
type cluster struct {
	*control
	nodes    []*node
	pod      string  // the pods' program
	operator *daemon // gives nodes their blocks, in tests that range over ways
}

// startCluster starts a cluster, and returns when its nodes are ready and have routes to each other's pods. The nodes are on
// the control plane's segment, but for those numbered far: they are on segments of their own behind the control plane's
// machine, which is the router between all segments, and knows nothing of pods.
func startCluster(t *testing.T, nodes int, far ...int) *cluster {
	t.Helper()
	c := startBare(t, nodes, far...)
	c.startBerth()
	return c
}

// startBare is startCluster without Berth: no node is ready.
func startBare(t *testing.T, nodes int, far ...int) *cluster {
	t.Helper()
	bin := needCluster(t)
	clearCgroups(t)
	done := stopwatch(t)
	bridge(t)
	for _, name := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		nettest.Sysctl(t, nil, name, "1")
	}
	var names []string
	for i := range nodes {
		names = append(names, nodeName(i+1))
	}
	c := &cluster{control: newControl(t, bin, names), nodes: make([]*node, nodes)}
	parts := []func(){func() { c.start(); done("the API server is ready") }}
	for i, name := range names {
		parts = append(parts, func() {
			c.nodes[i] = startNode(t, i+1, slices.Contains(far, i+1))
			done(name + "'s containerd is ready")
		})
	}
	together(t, parts...)
	c.pod = buildPod(t) // which the nodes' image has
	for _, n := range c.nodes {
		n.startKubelet(c.control)
		n.startProxy(c.control)
	}
	t.Cleanup(func() { // before the programs end
		if t.Failed() {
			said, err := c.kubectl("get", "nodes,pods,events", "--all-namespaces", "--output=wide")
			t.Logf("what there is: %v\n%s", err, said)
		}
	})
	return c
}

// needCluster ends the test unless a cluster can run here, and returns the folder of its programs.
func needCluster(t *testing.T) (bin string) {
	t.Helper()
	nettest.Need(t)
	programs.Root(t, "containerd and the kubelet need the machine's own root")
	programs.Need(t, "containerd", "ctr", "runc", "nsenter")
	return kubernetes(t)
}

// stopwatch begins a time. done says what has happened until now.
func stopwatch(t testing.TB) (done func(what string)) {
	began := time.Now()
	return func(what string) {
		t.Helper()
		t.Logf("%s after %s", what, time.Since(began).Round(10*time.Millisecond))
	}
}

// bridge makes the bridge that the nodes are on, with the control plane's addresses.
func bridge(t *testing.T) {
	t.Helper()
	for _, command := range []string{
		"ip link add br0 type bridge", "ip addr add " + world4 + "/24 dev br0", "ip addr add " + world6 + "/64 dev br0 nodad", "ip link set br0 up",
	} {
		nettest.Run(t, nil, command)
	}
	t.Cleanup(func() { nettest.Run(t, nil, "ip link del br0") })
}

// startBerth starts the nodes' agents, and returns when the nodes are ready and have routes to each other's pods.
func (c *cluster) startBerth() {
	c.t.Helper()
	c.each(func(n *node) { n.startBerth(c.control) })
	c.waitWhole()
}

// waitWhole waits until the nodes are ready, and have routes to each other's pods.
func (c *cluster) waitWhole() {
	t, nodes := c.t, len(c.nodes)
	t.Helper()
	done := stopwatch(t)
	for _, n := range c.nodes {
		c.waitReady(n)
		done(n.name + " is ready")
	}
	for _, n := range c.nodes {
		nettest.Eventually(t, n.name+" to have routes to all others", func() bool { return len(n.ways()) == 2*(nodes-1) })
		done(n.name + " has its routes")
		nettest.Eventually(t, n.name+"'s agent to be ready for pods", func() bool { return n.ails() == "" })
		done(n.name + "'s agent is ready for pods")
		n.proxy.until("kube-proxy of "+n.name+" to have written its rules", func() bool {
			tables := nettest.Snapshot(t, n.net).Only("nft").String()
			return strings.Contains(tables, "nft table ip6 kube-proxy chain masquerading") && strings.Contains(tables, "default/kubernetes")
		})
	}
	c.waitAccount()
	done("the cluster is ready")
}

// waitAccount waits until there is what pods of the default namespace need.
func (c *control) waitAccount() {
	c.t.Helper()
	nettest.Eventually(c.t, "the default service account", func() bool {
		return c.read(&struct{}{}, defaultPath+"serviceaccounts/default") == nil
	})
}

// waitReady waits until a node has CIDRs for its pods and is ready.
func (c *control) waitReady(n *node) {
	c.t.Helper()
	n.kubelet.until(n.name+" to be ready", func() bool {
		var o nodeObject
		return c.read(&o, nodesPath+n.name) == nil && o.Status.Conditions.is("Ready") && len(o.Spec.PodCIDRs) > 0
	})
}

// clearCgroups removes the cgroups of tests that were killed.
func clearCgroups(t *testing.T) {
	t.Helper()
	all, err := filepath.Glob("/sys/fs/cgroup/pids/" + cgroupPrefix + "*")
	must(t, err)
	for _, dir := range all {
		name := filepath.Base(dir)
		pid, _, _ := strings.Cut(strings.TrimPrefix(name, cgroupPrefix), "-")
		if _, err := os.Stat("/proc/" + pid); errors.Is(err, os.ErrNotExist) {
			programs.RemoveCgroup(t, name)
		}
	}
}

// kubernetes returns the folder of the cluster's programs, which test/cluster/build fills.
func kubernetes(t *testing.T) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	must(t, err)
	mod, err := exec.Command("go", "-C", "programs", "mod", "edit", "-print").Output()
	must(t, err)
	_, version, _ := strings.Cut(string(mod), "k8s.io/kubernetes ")
	dir := filepath.Join(cache, "berth", "k8s-"+strings.Fields(version)[0])
	if _, err := os.Stat(filepath.Join(dir, ".stamp")); err != nil {
		programs.Missing(t, "the programs of Kubernetes are missing: run `make cluster`")
	}
	return dir
}

// ways returns the node's routes to other nodes' pods, as the kernel has them.
func (n *node) ways() (ways []string) {
	n.t.Helper()
	for line := range strings.Lines(nettest.Snapshot(n.t, n.net).Only("route").String()) {
		if strings.Contains(line, " via ") && (strings.Contains(line, " 10.244.") || strings.Contains(line, " fd00:244:")) { // podCIDRs
			ways = append(ways, line)
		}
	}
	return ways
}
