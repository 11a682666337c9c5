package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// berthImage is the image that build/image makes of build/Dockerfile and this tree, as `make image` does.
const berthImage = "localhost/berth:test"

// chartImage has the chart use it.
const chartImage = "--set-string=image.repository=localhost/berth,image.tag=test,image.pullPolicy=Never"

var berthTar = artifact{name: "berth.tar"}

// buildImage makes Berth's image, and returns the file that has it.
func buildImage(t *testing.T) (file string) {
	t.Helper()
	tree, own := programs.Tree(t), programs.Own(t)
	return berthTar.file(t, func(path string) error {
		context, maker := filepath.Join(artifacts, "image"), filepath.Join(artifacts, "maker")
		examples := filepath.Join(context, runtime.GOARCH, "examples")
		err := errors.Join(os.MkdirAll(filepath.Join(context, "var"), 0o755), os.Symlink("/run", filepath.Join(context, "var/run")),
			os.CopyFS(filepath.Join(context, runtime.GOARCH, "bin"), os.DirFS(own)), os.MkdirAll(examples, 0o755))
		for _, name := range []string{"berth.rules.yaml", "berth.dashboard.json"} {
			raw, readErr := os.ReadFile(filepath.Join(tree, "deploy", name))
			err = errors.Join(err, readErr, os.WriteFile(filepath.Join(examples, name), raw, 0o644))
		}
		if err != nil {
			return err
		}
		if err := goBuild(nil, "-C", filepath.Join(tree, "build"), "build", "-o", maker, "./image"); err != nil { // as `make cluster` does
			return err
		}
		return quiet(exec.Command(maker, filepath.Join(tree, "build/Dockerfile"), context, "berth", "test", path, runtime.GOARCH))
	})
}

// startEmpty is startBare for nodes that get Berth by its image, which they have. Meanwhile it builds Helm, which installs Berth.
func startEmpty(t *testing.T, nodes int, far ...int) (c *cluster, helm string) {
	t.Helper()
	needCluster(t)
	together(t, func() { c = startBare(t, nodes, far...) }, func() { buildImage(t) }, func() { helm = buildHelm(t) })
	c.each(func(n *node) { n.load(buildImage(t)) })
	return c, helm
}

// manifest returns a manifest of deploy/kubernetes with the test's image.
func manifest(t testing.TB, name string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(programs.Tree(t), "deploy/kubernetes", name))
	must(t, err)
	image := regexp.MustCompile(`(?m)^( +)image: ghcr.io/berth-net/berth:v0.1.0$`)
	if len(image.FindAll(raw, -1)) < 2 { // the init container's and the container's
		t.Fatalf("%s does not have the published image twice", name)
	}
	return string(image.ReplaceAll(raw, []byte("${1}image: "+berthImage+"\n${1}imagePullPolicy: Never")))
}

// The cluster gets its network by the chart, and again by the manifest. Its nodes are ready once their agents are. Pods come and
// go while the agents are replaced, and each DEL succeeds: nothing is left. The agents are not privileged, and lack nothing.
func TestDaemonSet(t *testing.T) {
	c, helm := startEmpty(t, 3, 3)
	c.helm(helm, "install", "berth", chart(t), chartImage, "--wait", "--timeout=60s")
	c.waitWhole()
	c.available()
	c.onlyItself()
	empty := c.states()
	c.reach(c.deploy("web", 6, 0))
	c.serveHostPort()
	c.asksAgents()
	c.replaceAgents()
	c.reach(c.pods("web"))
	for _, n := range c.nodes {
		n.agentConfined()
		n.lacksNothing()
	}
	c.helm(helm, "uninstall", "berth", "--wait", "--timeout=60s") // pods can be deleted all the same
	c.mustKubectl("delete", "deployment", "web", "limited", "--cascade=foreground", "--timeout=60s")
	c.apply(manifest(t, "berth.yaml"))
	c.mustKubectl("rollout", "status", "--namespace=kube-system", "daemonset/berth", "--timeout=60s")
	c.noDELFailed()
	for _, n := range c.nodes {
		nettest.Eventually(t, n.name+"'s responder to answer", func() bool { h, _ := n.health(); return h.Error == "" && len(h.Addresses) == 2 })
	}
	c.nothingLeft(empty)
}

// replaceAgents replaces the agents' pods, node by node, while pods of the Deployment web come and go. In the end it has 9.
func (c *cluster) replaceAgents() {
	c.t.Helper()
	c.mustKubectl("rollout", "restart", "--namespace=kube-system", "daemonset/berth")
	for round := range 3 {
		c.mustKubectl("scale", "deployment/web", "--replicas=0")
		c.mustKubectl("scale", "deployment/web", fmt.Sprintf("--replicas=%d", 3*round+3))
		c.mustKubectl("rollout", "status", "deployment/web", "--timeout=60s")
	}
	c.mustKubectl("rollout", "status", "--namespace=kube-system", "daemonset/berth", "--timeout=120s")
	nettest.Eventually(c.t, "the former pods to be gone", func() bool { return len(c.pods("web")) == 9 })
}

// noDELFailed fails the test if a kubelet has heard of a DEL that failed.
func (c *cluster) noDELFailed() {
	c.t.Helper()
	for _, n := range c.nodes {
		if strings.Contains(n.kubelet.words(), "failed to destroy network") {
			c.t.Errorf("a DEL has failed on %s", n.name)
		}
	}
}
