package cluster

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/nettest"
)

// inSystem is kubectl in the namespace in which the chart is installed. It may not fail.
func (c *control) inSystem(args ...string) string {
	c.t.Helper()
	return c.mustKubectl(append([]string{"--namespace=kube-system"}, args...)...)
}

// operatorLabel selects the operators' pods.
const operatorLabel = "--selector=app.kubernetes.io/name=berth-operator"

// scaleOperators has the cluster have so many operators, and returns when they are ready and there are no others.
func (c *cluster) scaleOperators(replicas int) {
	c.t.Helper()
	c.inSystem("scale", "deployment/berth-operator", fmt.Sprintf("--replicas=%d", replicas))
	c.inSystem("rollout", "status", "deployment/berth-operator", "--timeout=60s")
	nettest.Eventually(c.t, "the other operators to be gone", func() bool { return len(c.list(operatorPods)) == replicas })
}

// operatorsConfined fails the test unless there are two operators, on a node each, that nobody gives rights on the node.
func (c *cluster) operatorsConfined() {
	c.t.Helper()
	c.inSystem("rollout", "status", "deployment/berth-operator", "--timeout=60s")
	have := 0
	for _, n := range c.nodes {
		if pids := n.processes(operator); len(pids) > 0 {
			have += len(pids)
			n.confined(operator, "Uid:\t65532\t65532\t65532\t65532", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2")
			if len(pids) > 1 {
				c.t.Errorf("%s has %d operators", n.name, len(pids))
			}
		}
	}
	if have != 2 {
		c.t.Errorf("the cluster has %d operators, want 2", have)
	}
}

// killLeader kills the operator that leads, as a lack of memory would.
func (c *cluster) killLeader() {
	c.t.Helper()
	holder := c.inSystem("get", "lease", "berth-operator", "-o", "jsonpath={.spec.holderIdentity}")
	on, _, _ := strings.Cut(holder, "_") // the host's name, as operators are in the host's network
	for _, n := range c.nodes {
		if n.name == on {
			for _, pid := range n.processes(operator) {
				must(c.t, os.NewSyscallError("kill", unix.Kill(pid, unix.SIGKILL)))
				c.t.Logf("killed the operator of %s, which led", n.name)
				return
			}
		}
	}
	c.t.Fatalf("there is no operator %q, which is to lead", holder)
}

// replaceOperators replaces the operators' pods, also where there is no third node that could have one meanwhile.
func (c *cluster) replaceOperators() {
	c.t.Helper()
	c.inSystem("rollout", "restart", "deployment/berth-operator")
	c.inSystem("rollout", "status", "deployment/berth-operator", "--timeout=60s")
}

// lacksNoRight fails the test if an operator or an agent may not do what it tries.
func (c *cluster) lacksNoRight() {
	c.t.Helper()
	for _, selector := range []string{operatorLabel, "--selector=app.kubernetes.io/name=berth"} {
		if said := c.inSystem("logs", selector, "--all-containers", "--tail=-1"); strings.Contains(said, "forbidden") {
			c.t.Errorf("the pods of %s lack a right:\n%s", selector, said)
		}
	}
}
