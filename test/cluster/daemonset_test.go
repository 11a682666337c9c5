package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
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

// manifest returns a manifest of deploy/kubernetes with the test's image.
func manifest(t *testing.T, name string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(programs.Tree(t), "deploy/kubernetes", name))
	must(t, err)
	image := regexp.MustCompile(`(?m)^( +)image: ghcr.io/berth-net/berth:v0.1.0$`)
	if len(image.FindAll(raw, -1)) != 2 {
		t.Fatalf("%s does not have the published image twice", name)
	}
	return string(image.ReplaceAll(raw, []byte("${1}image: "+berthImage+"\n${1}imagePullPolicy: Never")))
}

// The cluster gets its network by the chart, and again by the manifest. Its nodes are ready once their agents are. Pods come and
// go while the agents are replaced, and each DEL succeeds: nothing is left. The agents are not privileged, and lack nothing.
func TestDaemonSet(t *testing.T) {
	helm := buildHelm(t)
	c := startBare(t, 3, 3)
	image := writeBerthImage(t)
	for _, n := range c.nodes {
		n.load(image)
	}
	c.helm(helm, "install", "berth", chart(t), "--set-string=image.repository=berth.test/berth,image.tag=1,image.pullPolicy=Never",
		"--wait", "--timeout=60s")
	c.waitWhole()
	c.available()
	c.onlyItself()
	empty := c.states()
	c.reach(c.deploy("web", 6, 0))
	c.serveHostPort()
	c.asksAgents()
	c.mustKubectl("rollout", "restart", "--namespace=kube-system", "daemonset/berth")
	for round := range 3 {
		c.mustKubectl("scale", "deployment/web", "--replicas=0")
		c.mustKubectl("scale", "deployment/web", fmt.Sprintf("--replicas=%d", 3*round+3))
		c.mustKubectl("rollout", "status", "deployment/web", "--timeout=60s")
	}
	c.mustKubectl("rollout", "status", "--namespace=kube-system", "daemonset/berth", "--timeout=120s")
	nettest.Eventually(t, "the former pods to be gone", func() bool { return len(c.pods("web")) == 9 })
	c.reach(c.pods("web"))
	for _, n := range c.nodes {
		n.confined()
		n.lacksNothing()
	}
	c.helm(helm, "uninstall", "berth", "--wait", "--timeout=60s") // pods can be deleted all the same
	c.mustKubectl("delete", "deployment", "web", "limited", "--cascade=foreground", "--timeout=60s")
	c.apply(manifest(t, "berth.yaml"))
	c.mustKubectl("rollout", "status", "--namespace=kube-system", "daemonset/berth", "--timeout=60s")
	for _, n := range c.nodes {
		if log := n.kubelet.words(); strings.Contains(log, "failed to destroy network") {
			t.Errorf("a DEL has failed on %s", n.name)
		}
		nettest.Eventually(t, n.name+"'s responder to answer", func() bool { h, _ := n.health(); return h.Error == "" && len(h.Addresses) == 2 })
	}
	c.nothingLeft(empty)
}
