package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// berthImage is the image of the DaemonSet's pods.
const berthImage = "berth.test/berth:1"

// writeBerthImage writes an image like that of build/Dockerfile into a file.
func writeBerthImage(t *testing.T) (file string) {
	t.Helper()
	bin := programs.Own(t)
	files := []programs.File{{Name: "var/run", Mode: 0o777, Link: "/run"}}
	for _, name := range []string{"berth", "berthd", "berth-cni"} {
		content, err := os.ReadFile(filepath.Join(bin, name))
		must(t, err)
		files = append(files, programs.File{Name: "usr/bin/" + name, Mode: 0o755, Content: content})
	}
	file = filepath.Join(t.TempDir(), "berth.tar")
	programs.Image{Name: berthImage, Entrypoint: []string{"/usr/bin/berthd"}, Path: "/usr/bin", Files: files}.Write(t, file)
	return file
}

// manifest returns deploy/kubernetes/berth.yaml with the test's image.
func manifest(t *testing.T) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(programs.Tree(t), "deploy/kubernetes/berth.yaml"))
	must(t, err)
	const published = "image: ghcr.io/berth-net/berth:v0.1.0\n"
	if strings.Count(string(raw), published) != 2 {
		t.Fatalf("the manifest does not have the image %q twice", published)
	}
	return strings.ReplaceAll(string(raw), published, fmt.Sprintf("image: %s\n        imagePullPolicy: Never\n", berthImage))
}

// The cluster gets its network by one manifest. Its nodes are ready once their agents are. Pods come and go while the agents are
// replaced, and each DEL succeeds: nothing is left.
func TestDaemonSet(t *testing.T) {
	c := startBare(t, 3, 3)
	image := writeBerthImage(t)
	for _, n := range c.nodes {
		n.load(image)
	}
	c.apply(manifest(t))
	c.waitWhole()
	c.mustKubectl("rollout", "status", "--namespace=kube-system", "daemonset/berth", "--timeout=60s")
	empty := c.states()
	c.reach(c.deploy("web", 6, 0))
	c.mustKubectl("rollout", "restart", "--namespace=kube-system", "daemonset/berth")
	for round := range 3 {
		c.mustKubectl("scale", "deployment/web", "--replicas=0")
		c.mustKubectl("scale", "deployment/web", fmt.Sprintf("--replicas=%d", 3*round+3))
		c.mustKubectl("rollout", "status", "deployment/web", "--timeout=60s")
	}
	c.mustKubectl("rollout", "status", "--namespace=kube-system", "daemonset/berth", "--timeout=120s")
	nettest.Eventually(t, "the former pods to be gone", func() bool { return len(c.pods("web")) == 9 })
	c.reach(c.pods("web"))
	c.mustKubectl("delete", "daemonset", "--namespace=kube-system", "berth", "--timeout=60s") // pods can be deleted all the same
	c.mustKubectl("delete", "deployment", "web", "--cascade=foreground", "--timeout=60s")
	c.apply(manifest(t))
	c.mustKubectl("rollout", "status", "--namespace=kube-system", "daemonset/berth", "--timeout=60s")
	for _, n := range c.nodes {
		if log := n.kubelet.words(); strings.Contains(log, "failed to destroy network") {
			t.Errorf("a DEL has failed on %s", n.name)
		}
		nettest.Eventually(t, n.name+"'s responder to answer", func() bool { h, _ := n.health(); return h.Error == "" && len(h.Addresses) == 2 })
	}
	c.nothingLeft(empty)
}
