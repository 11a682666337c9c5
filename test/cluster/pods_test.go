package cluster

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// imageName is the image of all pods, and of their sandboxes: test/cluster/pod.
const imageName = "berth.test/pod:1"

var podProgram, podImage = artifact{name: "pod"}, artifact{name: "pod.tar"}

// buildPod builds the program in that image, and returns its path.
func buildPod(t testing.TB) (program string) {
	t.Helper()
	return podProgram.file(t, func(path string) error {
		return goBuild([]string{"CGO_ENABLED=0"}, "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", path, "./pod")
	})
}

// writeImage writes that image into a file, and returns the file's path.
func writeImage(t testing.TB) (file string) {
	t.Helper()
	program := buildPod(t)
	return podImage.file(t, func(path string) error {
		content, err := os.ReadFile(program)
		if err != nil {
			return err
		}
		return programs.Image{
			Name: imageName, Command: []string{"/pod", "pause"}, Files: []programs.File{{Name: "pod", Mode: 0o755, Content: content}},
		}.Write(path)
	})
}

// deployment is the manifest of pods that are spread over the nodes. linger is how long they go on when they are told to end: at
// most as long as the kubelet lets them, 30 s. That has to be less than tests wait: the kernel drops a SIGTERM that comes before
// a pod's first process, which has just begun, has said that it wants to hear it, and such a pod ends when that time is over.
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
		Conditions conditions
	}
}

func (p pod) ready() bool { return p.Status.Conditions.is("Ready") }

// pods returns the pods of a Deployment.
func (c *control) pods(app string) []pod {
	c.t.Helper()
	return c.list(defaultPath + "pods?labelSelector=app%3D" + app)
}

// list returns the pods that the API server has at a path.
func (c *control) list(path string) []pod {
	c.t.Helper()
	var all struct{ Items []pod }
	c.get(&all, path)
	return all.Items
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
	ask := []string{"ask"}
	for _, p := range all {
		if len(p.Status.PodIPs) != 2 {
			c.t.Errorf("pod %s has the addresses %v, want one of each family", p.Metadata.Name, p.Status.PodIPs)
		}
		for _, a := range p.Status.PodIPs {
			ask = append(ask, p.Metadata.Name+"="+a.IP)
		}
	}
	lines := make([]net.Conn, len(all))
	for i, p := range all { // a pod that is ready need not serve yet
		lines[i] = c.call(p)
		defer lines[i].Close()
	}
	var asking sync.WaitGroup
	turns := make(chan struct{}, 8)
	for i, p := range all {
		asking.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			if err := tell(lines[i], ask...); err != nil {
				c.t.Errorf("pod %s on %s does not reach all others: %v", p.Metadata.Name, p.Spec.NodeName, err)
			}
		})
	}
	asking.Wait()
}

// call connects the test to a pod, from the pod's node, as a kubelet reaches pods for probes. It waits until the pod serves.
func (c *cluster) call(p pod) (line net.Conn) {
	c.t.Helper()
	on := slices.IndexFunc(c.nodes, func(n *node) bool { return n.name == p.Spec.NodeName })
	if on < 0 || len(p.Status.PodIPs) == 0 {
		c.t.Fatalf("nobody can call the pod %+v", p)
	}
	var err error
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		err = nettest.DoIn(c.nodes[on].net, func() (err error) {
			line, err = net.DialTimeout("tcp", net.JoinHostPort(p.Status.PodIPs[0].IP, "8081"), 10*time.Second)
			return err
		})
		if err == nil {
			return line
		}
		if !errors.Is(err, unix.ECONNREFUSED) || time.Now().After(end) {
			c.t.Fatalf("%s does not reach its pod %s: %v", p.Spec.NodeName, p.Metadata.Name, err)
		}
	}
}

// tell has a pod ask others, from within, as the program test/cluster/pod does that is called with these arguments. An error says
// which of the others do not answer as they are to.
func tell(line net.Conn, ask ...string) error {
	if err := line.SetDeadline(time.Now().Add(2 * nettest.Deadline)); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(line, strings.Join(ask, " ")); err != nil {
		return err
	}
	said, err := io.ReadAll(line)
	if err == nil && string(said) != "well\n" {
		err = errors.New(string(said))
	}
	return err
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
// which a node may get anew, and what kube-proxy keeps for a while of Services of datagrams that are gone. kube-proxy drops what goes to
// unused addresses of Services only if it has heard of the ServiceCIDRs before it writes all rules: at its start, or after an error.
func (n *node) state() nettest.State {
	n.t.Helper()
	return nettest.Snapshot(n.t, n.net).Without("conntrack").But([]string{
		"link eth0 ", "nft table ip kube-proxy chain service-", "nft table ip6 kube-proxy chain service-",
		"nft table ip kube-proxy chain cluster-ips-check", "nft table ip6 kube-proxy chain cluster-ips-check",
	})
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
