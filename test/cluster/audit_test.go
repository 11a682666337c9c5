package cluster

import (
	"errors"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/nettest"
)

// audit is `berth audit --cluster` on the node, which counts attachments of any age, and its exit code.
func (n *node) audit() (out string, code int) {
	n.t.Helper()
	out, err := n.run(filepath.Join(n.bin, "berth"), "audit", "--cluster", "--min-age=0s")
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		return err.Error(), ended.ExitCode() // with what it says on stderr
	}
	must(n.t, err)
	return out, 0
}

// wantAudit waits until an audit of the node has an exit code, and says this.
func (n *node) wantAudit(code int, says string) {
	n.t.Helper()
	out, got := "", 0
	defer func() { n.t.Logf("exit code %d:\n%s", got, out) }()
	nettest.Eventually(n.t, "an audit that says "+says, func() bool {
		out, got = n.audit()
		return got == code && strings.Contains(out, says)
	})
}

// lose takes all that containerd has of a pod away from it, without a DEL, and starts containerd anew. The pod's network namespace
// stays mounted, as it does where a disk is replaced or somebody cleans up.
func (n *node) lose(uid string) {
	n.t.Helper()
	ctr := func(args ...string) (string, error) {
		return n.run(found(n.t, "ctr"), append([]string{"--namespace", "k8s.io"}, args...)...)
	}
	all, err := ctr("containers", "ls", "-q", `labels."io.kubernetes.pod.uid"==`+uid)
	must(n.t, err)
	for _, id := range strings.Fields(all) {
		if _, err := ctr("tasks", "delete", "--force", id); err != nil { // containerd may hear of the task's end first, and delete it
			left, lsErr := ctr("tasks", "ls", "-q")
			must(n.t, lsErr)
			if slices.Contains(strings.Fields(left), id) {
				n.t.Fatal(err)
			}
		}
		_, err := ctr("containers", "delete", id)
		must(n.t, err)
	}
	n.containerd.kill()
	n.wantAudit(2, "could not ask the runtime")
	n.containerd.start()
	n.waitContainerd()
}

// A pod is deleted by force while its node's kubelet is away, and containerd loses the pod's sandbox: nobody will ever delete it. An
// audit of the cluster tells, and nothing is released before a person says so, also when the kubelet is back. Meanwhile the audit
// knows what is only away: the runtime, and a pod of which the kubelet has not heard.
func TestAuditCluster(t *testing.T) {
	c := startCluster(t, 1)
	empty, n := c.states(), c.nodes[0]
	c.deploy("web", 2, 0)
	lost, going := c.deploy("lost", 1, 0)[0], c.deploy("going", 1, 0)[0]
	n.wantAudit(0, "4 attachments of pods compared with the API server and the runtime of node n1: none is leaked")

	n.kubelet.kill()
	c.mustKubectl("delete", "deployment", "lost", "going", "--cascade=orphan")
	c.mustKubectl("delete", "replicaset", "-l", "app in (lost, going)", "--cascade=orphan") // so that no pod comes in their places
	c.mustKubectl("delete", "pod", "--force", "--grace-period=0", lost.Metadata.Name, going.Metadata.Name)
	n.wantAudit(0, "gone-from-api")
	n.lose(lost.Metadata.UID)
	n.wantAudit(1, "1 leaked")
	at := n.attachments()
	leaked := slices.IndexFunc(at, func(a api.Attachment) bool { return a.Pod != nil && a.Pod.UID == lost.Metadata.UID })
	if len(at) != 4 || leaked < 0 {
		t.Fatalf("the attachments are %+v", at)
	}
	release := "berth release " + at[leaked].ID
	n.wantAudit(1, release)

	n.kubelet.start()
	c.waitReady(n)
	nettest.Eventually(t, "the pod to go of which the kubelet had not heard", func() bool { return len(n.attachments()) == 3 })
	n.wantAudit(1, release) // nothing was released by itself
	n.berth("release", "--wait", at[leaked].ID)
	n.wantAudit(0, "2 attachments of pods compared with the API server and the runtime of node n1: none is leaked")

	n.mustRun(found(t, "umount"), at[leaked].Netns)
	n.mustRun(found(t, "rm"), at[leaked].Netns)
	c.mustKubectl("delete", "deployment", "web", "--cascade=foreground", "--timeout=60s")
	c.nothingLeft(empty)
}
