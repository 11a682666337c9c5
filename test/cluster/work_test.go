package cluster

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/nettest"
)

// statefulSet is the manifest of a StatefulSet of one pod on a node, called NAME-0.
func statefulSet(name, node string) string {
	return fmt.Sprintf(`apiVersion: apps/v1
kind: StatefulSet
metadata: {name: %[1]s}
spec:
  replicas: 1
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      automountServiceAccountToken: false
      enableServiceLinks: false
      nodeSelector: {kubernetes.io/hostname: %[2]s}
      containers:
      - name: pod
        image: %[3]s
        imagePullPolicy: Never
        command: [/pod, serve]
        env:
        - {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
`, name, node, imageName)
}

// some returns at most so many of the pods on each node.
func some(all []pod, each int) (few []pod) {
	on := map[string]int{}
	for _, p := range all {
		if on[p.Spec.NodeName]++; on[p.Spec.NodeName] <= each {
			few = append(few, p)
		}
	}
	return few
}

// settle waits until so many pods of an app are there, all of them ready.
func (c *cluster) settle(what, app string, pods int) (all []pod) {
	c.t.Helper()
	began := time.Now()
	nettest.Eventually(c.t, fmt.Sprintf("%d pods of %s to be ready, %s", pods, app, what), func() bool {
		all = c.pods(app)
		return len(all) == pods && !slices.ContainsFunc(all, func(p pod) bool { return !p.ready() })
	})
	c.t.Logf("%s, %d pods are ready after %s", what, pods, time.Since(began).Round(10*time.Millisecond))
	return all
}

// Sixty pods reach each other. They are updated while a kubelet and a containerd are killed, a node is drained, and pods are deleted
// by force, among them one of a StatefulSet whose successor comes to the same node before the former's DEL. Whatever is there then
// reaches all others, and in the end nothing is left.
func TestWorkloads(t *testing.T) {
	c := startBothWays(t, 3, 3)
	for range c.ways() {
		empty := c.states()
		c.work(60)
		c.mustKubectl("delete", "deployment/web", "statefulset/db", "--cascade=foreground", "--timeout=120s")
		c.nothingLeft(empty)
	}
}

// work does with a Deployment of so many pods what people do.
func (c *cluster) work(pods int) {
	c.t.Helper()
	one, two, three := c.nodes[0], c.nodes[1], c.nodes[2]
	c.apply(deployment("web", pods, 0))
	all := c.settle("at first", "web", pods)
	began := time.Now()
	c.reach(all)
	c.t.Logf("each has reached each after %s", time.Since(began).Round(10*time.Millisecond))

	c.mustKubectl("rollout", "restart", "deployment/web")
	nettest.Eventually(c.t, "a former pod to end", func() bool { return one.ending(all) > 0 })
	one.kubelet.kill()
	two.containerd.kill()
	two.containerd.start()
	one.kubelet.start()
	nettest.Eventually(c.t, "the next pod to end", func() bool { return three.ending(all) > 0 })
	three.kubelet.kill()
	three.kubelet.start()
	if c.operator != nil {
		c.operator.kill()
		c.operator.start()
	}
	c.mustKubectl("rollout", "status", "deployment/web", "--timeout=180s")
	c.reach(some(c.settle("after the update", "web", pods), 3))

	c.mustKubectl("drain", two.name, "--timeout=120s")
	nettest.Eventually(c.t, "the drained node to have no pod", two.released)
	c.mustKubectl("uncordon", two.name)
	c.reach(some(c.settle("after the drain", "web", pods), 3))

	var names []string
	for _, p := range some(c.pods("web"), 5) {
		names = append(names, p.Metadata.Name)
	}
	c.mustKubectl(append([]string{"delete", "pods", "--force", "--grace-period=0"}, names...)...)
	c.reach(some(c.settle("after deletion by force", "web", pods), 3))
	successor(c, three)
}

// successor: a pod of a StatefulSet is deleted by force while its node's kubelet is away. Its successor, of the same name, comes to
// the same node, and the former goes when the kubelet is back.
func successor(c *cluster, n *node) {
	c.t.Helper()
	attached := func() []api.Attachment {
		return slices.DeleteFunc(n.attachments(), func(a api.Attachment) bool { return a.Pod == nil || a.Pod.Name != "db-0" })
	}
	c.apply(statefulSet("db", n.name))
	c.settle("at first", "db", 1)
	was := attached()
	n.kubelet.kill()
	former := c.pods("db")[0].Metadata.UID
	c.mustKubectl("delete", "pod", "db-0", "--force", "--grace-period=0")
	nettest.Eventually(c.t, "the successor to be given to the node", func() bool {
		all := c.pods("db")
		return len(all) == 1 && all[0].Metadata.UID != former && all[0].Spec.NodeName == n.name
	})
	if now := attached(); len(was) != 1 || len(now) != 1 || now[0].ID != was[0].ID {
		c.t.Errorf("the former pod's attachment was %v and is %v", was, now)
	}
	n.kubelet.start()
	all := c.settle("a StatefulSet's successor", "db", 1)
	nettest.Eventually(c.t, "the former pod's attachment to go", func() bool {
		now := attached()
		return len(now) == 1 && now[0].ID != was[0].ID && slices.Contains(now[0].Addresses, all[0].Status.PodIPs[0].IP)
	})
	c.reach(append(all, some(c.pods("web"), 1)...))
}
