package cluster

import (
	"bufio"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/nettest"
)

// ending returns how many of these pods the node's kubelet has told to end, by what they have printed.
func (n *node) ending(all []pod) (ended int) {
	n.t.Helper()
	for _, p := range all {
		logs, err := filepath.Glob(filepath.Join(n.disk, "var/log/pods/*_"+p.Metadata.UID+"/pod/*.log"))
		must(n.t, err)
		if slices.ContainsFunc(logs, func(l string) bool {
			raw, _ := os.ReadFile(l) // its pod may be gone
			return strings.Contains(string(raw), "ending")
		}) {
			ended++
		}
	}
	return ended
}

// answers returns what the pod at an address says to the node.
func (n *node) answers(addr string) (said string) {
	n.t.Helper()
	_ = nettest.DoIn(n.net, func() error { // an error shows in what is said
		conn, err := net.DialTimeout("tcp", net.JoinHostPort(addr, "8080"), time.Second)
		if err != nil {
			return err
		}
		defer conn.Close()
		must(n.t, conn.SetDeadline(time.Now().Add(time.Second)))
		said, err = bufio.NewReader(conn).ReadString('\n')
		return err
	})
	return said
}

// A node does without the API server, and then without its agent.
func TestAway(t *testing.T) {
	c := startBothWays(t, 1)
	for range c.ways() {
		c.apiServerAway(c.nodes[0])
		c.agentAway(c.nodes[0])
	}
}

// apiServerAway: the API server ends while pods do. The kubelet ends their sandboxes, and the agent detaches them at once. A pod whose
// sandbox dies gets another one, with other addresses. Once the API server is back, new pods come.
func (c *cluster) apiServerAway(n *node) {
	t, empty := c.t, c.states()
	const pods, linger = 4, 5 * time.Second
	stays := c.deploy("stays", 1, 0)[0]
	ends := c.deploy("web", pods, linger)
	c.mustKubectl("delete", "deployment", "web")
	nettest.Eventually(t, "the kubelet to tell the pods to end", func() bool { return n.ending(ends) == pods })
	c.api.kill()
	began := time.Now()
	if left := len(n.attachments()); left != pods+1 {
		t.Errorf("%d pods were attached when the API server ended, want %d", left, pods+1)
	}
	nettest.Eventually(t, "the pods to be detached", func() bool { return len(n.attachments()) == 1 })
	t.Logf("the pods, which go on for %s, are detached %s after the API server's end", linger, time.Since(began).Round(10*time.Millisecond))

	was := n.attachments()[0]
	began = time.Now()
	n.mustRun(found(t, "ctr"), "--namespace", "k8s.io", "tasks", "kill", "--signal", "SIGKILL", was.ContainerID)
	var now api.Attachment
	nettest.Eventually(t, "the pod to have another sandbox", func() bool {
		all := n.attachments()
		if len(all) == 1 {
			now = all[0]
		}
		return len(all) == 1 && now.ContainerID != was.ContainerID && strings.HasPrefix(n.answers(now.Addresses[0]), stays.Metadata.Name+" ")
	})
	t.Logf("the pod has another sandbox after %s: %v, and not %v", time.Since(began).Round(10*time.Millisecond), now.Addresses, was.Addresses)
	for _, a := range now.Addresses {
		if slices.Contains(was.Addresses, a) {
			t.Errorf("the pod has the address %s again, which has to rest", a)
		}
	}

	c.api.start()
	began = time.Now()
	c.api.until("the API server to be ready again", c.ready)
	for _, d := range []*daemon{c.manager, c.scheduler} { // which would wait for up to a minute when it happens again within two
		d.kill()
		d.start()
	}
	c.reach(c.deploy("next", pods, 0))
	t.Logf("new pods reach each other %s after the API server's start", time.Since(began).Round(10*time.Millisecond))
	c.mustKubectl("delete", "deployment", "stays", "next", "--cascade=foreground", "--timeout=60s")
	c.nothingLeft(empty)
	t.Logf("nothing is left %s after the API server's start", time.Since(began).Round(10*time.Millisecond))
}

// agentAway: the agent dies, and pods end meanwhile: the plugin cuts them off and queues their deletions. The next agent carries
// these out. A kubelet that is started anew finds nothing amiss.
func (c *cluster) agentAway(n *node) {
	t, empty := c.t, c.states()
	c.deploy("web", 6, 0)
	n.berthd.kill()
	began := time.Now()
	c.mustKubectl("delete", "deployment", "web", "--cascade=foreground", "--timeout=60s")
	t.Logf("the pods are deleted after %s", time.Since(began).Round(10*time.Millisecond))
	n.berthd.start()
	c.nothingLeft(empty)
	t.Logf("nothing is left %s after they were to be deleted", time.Since(began).Round(10*time.Millisecond))
	n.kubelet.kill()
	n.kubelet.start()
	c.waitReady(n)
	c.reach(c.deploy("next", 6, 0))
	c.mustKubectl("delete", "deployment", "next", "--cascade=foreground", "--timeout=60s")
	c.nothingLeft(empty)
}
