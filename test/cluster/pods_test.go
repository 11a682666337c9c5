package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// imageName is the image of all pods, and of their sandboxes: test/cluster/pod.
const imageName = "berth.test/pod:1"

// writeImage writes that image into a file, and returns the file's path, and that of the program in it.
func writeImage(t *testing.T) (file, pod string) {
	t.Helper()
	dir := t.TempDir()
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", dir+"/pod", "./pod")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the pod's program: %v\n%s", err, out)
	}
	program, err := os.ReadFile(dir + "/pod")
	must(t, err)
	file = filepath.Join(dir, "image.tar")
	programs.Image{
		Name: imageName, Command: []string{"/pod", "pause"}, Files: []programs.File{{Name: "pod", Mode: 0o755, Content: program}},
	}.Write(t, file)
	return file, dir + "/pod"
}

// deployment is the manifest of pods that are spread over the nodes. linger is how long they go on when they are told to end.
func deployment(name string, replicas int, linger time.Duration) string {
	return fmt.Sprintf(`apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s}
spec:
  replicas: %[2]d
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      automountServiceAccountToken: false
      enableServiceLinks: false
      terminationGracePeriodSeconds: 60
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: %[1]s}}}
      containers:
      - name: pod
        image: %[3]s
        imagePullPolicy: Never
        command: [/pod, serve]
        env:
        - {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
        - {name: LINGER, value: %[4]s}
`, name, replicas, imageName, linger)
}

// pod is what the tests want to know of a Pod.
type pod struct {
	Metadata struct{ Name, UID string }
	Spec     struct{ NodeName string }
	Status   struct {
		PodIPs     []struct{ IP string }
		Conditions []struct{ Type, Status string }
	}
}

func (p pod) ready() bool {
	for _, c := range p.Status.Conditions {
		if c.Type == "Ready" {
			return c.Status == "True"
		}
	}
	return false
}

// pods returns the pods of a Deployment.
func (c *control) pods(app string) []pod {
	c.t.Helper()
	var list struct{ Items []pod }
	c.get(&list, "pods", "-l", "app="+app)
	return list.Items
}

// deploy makes a Deployment, waits until its pods are ready, and returns them.
func (c *cluster) deploy(app string, replicas int, linger time.Duration) (all []pod) {
	c.t.Helper()
	c.apply(deployment(app, replicas, linger))
	defer func() {
		if c.t.Failed() {
			out, _ := c.kubectl("get", "events")
			c.t.Log(out)
		}
	}()
	nettest.Eventually(c.t, fmt.Sprintf("%d pods of %s to be ready", replicas, app), func() bool {
		all = c.pods(app)
		ready := 0
		for _, p := range all {
			if p.ready() {
				ready++
			}
		}
		return ready == replicas
	})
	return all
}

// reach has each pod ask each other one by all its addresses.
func (c *cluster) reach(all []pod) {
	c.t.Helper()
	ask := []string{}
	for _, p := range all {
		if len(p.Status.PodIPs) != 2 {
			c.t.Errorf("pod %s has the addresses %v, want one of each family", p.Metadata.Name, p.Status.PodIPs)
		}
		for _, a := range p.Status.PodIPs {
			ask = append(ask, p.Metadata.Name+"="+a.IP)
		}
	}
	var asking sync.WaitGroup
	turns := make(chan struct{}, 8)
	for _, p := range all {
		asking.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			if _, err := c.kubectl(append([]string{"exec", p.Metadata.Name, "--", "/pod", "ask"}, ask...)...); err != nil {
				c.t.Errorf("pod %s on %s does not reach all others: %v", p.Metadata.Name, p.Spec.NodeName, err)
			}
		})
	}
	asking.Wait()
}

// states are what the oracle sees on each node.
func (c *cluster) states() (all []nettest.State) {
	c.t.Helper()
	for _, n := range c.nodes {
		all = append(all, n.state())
	}
	return all
}

// state is what the oracle sees on the node. Tracked flows are left out: programs of the node have some, too. So is the uplink,
// which a node may get anew, and what kube-proxy keeps for a while of Services of datagrams that are gone.
func (n *node) state() nettest.State {
	n.t.Helper()
	return nettest.Snapshot(n.t, n.net).Without("conntrack").But([]string{"link eth0 ", "nft ip kube-proxy chain service-", "nft ip6 kube-proxy chain service-"})
}

// nothingLeft waits until each node has no attachment and is as it was when empty was taken, and has the agents audit.
func (c *cluster) nothingLeft(empty []nettest.State) {
	c.t.Helper()
	for i, n := range c.nodes {
		nettest.Eventually(c.t, n.name+" to have released all attachments", n.released)
		diff := ""
		for end := time.Now().Add(nettest.Deadline); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			if diff = differs(empty[i], n.state()); diff == "" {
				break
			}
		}
		if diff != "" {
			if lines := strings.SplitAfter(diff, "\n"); len(lines) > 20 {
				diff = strings.Join(lines[:20], "") + "..."
			}
			c.t.Errorf("left behind on %s after %s:\n%s", n.name, nettest.Deadline, diff)
		}
		if out, err := n.run(filepath.Join(n.bin, "berth"), "audit"); err != nil {
			c.t.Error(out, err)
		}
	}
}
