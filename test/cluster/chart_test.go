package cluster

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kube"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// chart is the folder of Berth's chart.
func chart(t *testing.T) string {
	t.Helper()
	return filepath.Join(programs.Tree(t), "deploy/helm/berth")
}

var helmProgram = artifact{name: "helm"}

// buildHelm builds Helm, and returns its path. Where nobody has built it before, that takes minutes.
func buildHelm(t *testing.T) (program string) {
	t.Helper()
	return helmProgram.file(t, func(path string) error { // as `make cluster` does
		return goBuild(nil, "-C", "../helm", "build", "-o", path, "helm.sh/helm/v4/cmd/helm")
	})
}

// helm runs Helm for the cluster's administrator, in the namespace kube-system. It may not fail.
func (c *cluster) helm(program string, args ...string) {
	c.t.Helper()
	c.mustRun(program, append([]string{"--kubeconfig=/etc/kubernetes/" + admin, "--namespace=kube-system"}, args...)...)
}

// network returns the status and the reason of a node's condition NetworkUnavailable, and the node's taints.
func (c *control) network(node string) string {
	c.t.Helper()
	var said []string
	o := c.object(node)
	for _, is := range o.Status.Conditions {
		if is.Type == "NetworkUnavailable" {
			said = append(said, is.Status, is.Reason)
		}
	}
	for _, taint := range o.Spec.Taints {
		said = append(said, taint.Key)
	}
	return strings.Join(said, " ")
}

// available waits until each node says that it has a network. Then somebody says that they have none, as a cloud's controller
// does, and the agents say that they have one.
func (c *cluster) available() {
	c.t.Helper()
	wait := func(when string) {
		c.t.Helper()
		for _, n := range c.nodes {
			nettest.Eventually(c.t, n.name+" to say that it has a network, "+when, func() bool {
				return c.network(n.name) == "False "+kube.Reason
			})
		}
	}
	wait("as its agent is ready")
	for _, n := range c.nodes {
		c.mustKubectl("patch", "node", n.name, "--subresource=status", "--patch",
			`{"status": {"conditions": [{"type": "NetworkUnavailable", "status": "True", "reason": "NoRouteCreated"}]}}`)
	}
	wait("although somebody said that it has none")
}

// onlyItself tries what the token of an agent's pod is good for: its own node's conditions, Events in its own name, and nothing else.
func (c *cluster) onlyItself() {
	c.t.Helper()
	its := c.list(agentPods)[0]
	other := c.nodes[0].name
	if other == its.Spec.NodeName {
		other = c.nodes[1].name
	}
	token := strings.TrimSpace(c.mustKubectl("create", "token", "berth", "--namespace=kube-system",
		"--bound-object-kind=Pod", "--bound-object-name="+its.Metadata.Name, "--bound-object-uid="+its.Metadata.UID))
	send := func(method, path, what string) string { // not by kubectl, which first reads what it patches: the agent has no right to that
		status, answer, err := c.ask(token, method, path, what)
		must(c.t, err)
		var said struct{ Message string }
		must(c.t, json.Unmarshal(answer, &said))
		return status + ": " + said.Message
	}
	const condition = `{"status": {"conditions": [{"type": "Test", "status": "True"}]}}`
	const address = `{"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.66"}]}}`
	const events = "/apis/events.k8s.io/v1/namespaces/default/events"
	event := func(of string) string {
		return fmt.Sprintf(`{"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"generateName": "of-"}, "eventTime": "2026-01-02T03:04:05.000000Z", "type": "Normal", "action": "Test",
			"reason": "Test", "note": "test", "reportingController": %q, "reportingInstance": %q, "regarding": {"kind": "Node", "name": %[2]q}}`, kube.Reporter, of)
	}
	for _, try := range []struct{ method, path, what, says string }{
		{http.MethodPatch, nodesPath + its.Spec.NodeName + "/status", condition, "200 OK: "},
		{http.MethodPatch, nodesPath + other + "/status", condition, "of its own node alone, which is \"" + its.Spec.NodeName + "\""},
		{http.MethodPatch, nodesPath + its.Spec.NodeName + "/status", address, "may not change its node's addresses"},
		{http.MethodPatch, nodesPath + its.Spec.NodeName, `{"metadata": {"labels": {"a": "b"}}}`, "cannot patch resource \"nodes\""},
		{http.MethodPost, events, event(its.Spec.NodeName), "201 Created: "},
		{http.MethodPost, events, event(other), "of its own node alone, which is \"" + its.Spec.NodeName + "\""},
	} {
		said := ""
		nettest.Eventually(c.t, "the answer "+try.says, func() bool { // a policy is in force some time after it is made
			said = send(try.method, try.path, try.what)
			return strings.Contains(said, try.says)
		})
		c.t.Logf("an agent of %s asks %s %s with %s: %s", its.Spec.NodeName, try.method, try.path, try.what, said)
	}
}

// hostPort is the port of the nodes that serveHostPort uses.
const hostPort = "8099"

// serveHostPort has a pod on each node that has a port of the node and limits of bandwidth, and asks it from outside.
func (c *cluster) serveHostPort() {
	c.t.Helper()
	manifest := deployment("limited", len(c.nodes), 0)
	manifest = strings.Replace(manifest, "metadata: {labels: {app: limited}}",
		"metadata: {labels: {app: limited}, annotations: {kubernetes.io/ingress-bandwidth: 100M, kubernetes.io/egress-bandwidth: 100M}}", 1)
	manifest += "        ports: [{containerPort: 8080, hostPort: " + hostPort + "}]\n"
	c.apply(manifest)
	c.mustKubectl("rollout", "status", "deployment/limited", "--timeout=60s")
	for _, p := range c.pods("limited") {
		for _, n := range c.nodes {
			if n.name != p.Spec.NodeName {
				continue
			}
			for _, address := range []string{n.address4(), n.address6()} {
				if _, err := c.run(c.pod, "meet", p.Metadata.Name, net.JoinHostPort(address, hostPort)); err != nil {
					c.t.Errorf("the port of %s at %s does not lead to pod %s: %v", n.name, address, p.Metadata.Name, err)
				}
			}
		}
	}
}

// processes returns the node's processes of a name, in its own network namespace.
func (n *node) processes(name string) (pids []int) {
	n.t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/comm")
	must(n.t, err)
	for _, comm := range all {
		is, _ := os.ReadFile(comm)
		var at unix.Stat_t
		if err := unix.Stat(filepath.Join(filepath.Dir(comm), "ns/net"), &at); err == nil && string(is) == name+"\n" && at.Ino == n.net.Ref().Ino {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(comm)))
			must(n.t, err)
			pids = append(pids, pid)
		}
	}
	return pids
}

// confined fails the test unless the processes of a name, of which there is one, are what these lines of their status say.
func (n *node) confined(name string, lines ...string) {
	n.t.Helper()
	pids := n.processes(name)
	if len(pids) == 0 {
		n.t.Errorf("there is no %s on %s", name, n.name)
	}
	for _, pid := range pids {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		must(n.t, err)
		for _, line := range lines {
			if !strings.Contains(string(status), line+"\n") {
				n.t.Errorf("%s of %s may do other things than %q:\n%s", name, n.name, line, status)
			}
		}
	}
}

// agentConfined fails the test unless the node's agent has the capabilities that the chart names, and no others, and a seccomp filter.
func (n *node) agentConfined() {
	n.t.Helper()
	const want = uint64(1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_DAC_READ_SEARCH)
	n.confined("berthd", fmt.Sprintf("CapEff:\t%016x", want), fmt.Sprintf("CapBnd:\t%016x", want), "Seccomp:\t2")
}

// lacksNothing fails the test if the node's agent lacks anything of the kernel that it could have with more rights.
func (n *node) lacksNothing() {
	n.t.Helper()
	var status struct {
		Lacks []string
		Owed  int
	}
	must(n.t, json.Unmarshal([]byte(n.berth("status", "-o", "json")), &status))
	if len(status.Lacks) > 0 || status.Owed > 0 {
		n.t.Errorf("the agent of %s lacks %q, and owes %d", n.name, status.Lacks, status.Owed)
	}
	for _, name := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		value := ""
		must(n.t, nettest.DoIn(n.net, func() (err error) { value, err = ns.Sysctl(name); return err }))
		if value != "1" {
			n.t.Errorf("%s of %s is %s", name, n.name, value)
		}
	}
	logs, err := filepath.Glob(filepath.Join(n.disk, "var/log/pods/kube-system_berth-*/berthd/*.log"))
	must(n.t, err)
	if len(logs) == 0 {
		n.t.Errorf("there is no log of an agent on %s", n.name)
	}
	for _, log := range logs {
		raw, err := os.ReadFile(log)
		must(n.t, err)
		for line := range strings.Lines(string(raw)) {
			for _, word := range []string{"read-only file system", "operation not permitted", "permission denied"} {
				if strings.Contains(line, word) {
					n.t.Errorf("the agent of %s may not do something: %s", n.name, line)
				}
			}
		}
	}
}
