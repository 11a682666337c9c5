// Package networks gives pods several networks, by Berth's real programs and the reference plugins.
package networks

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/test/programs"
)

func TestMain(m *testing.M) { programs.Main(m) }

var must = nettest.Must

// node is a node with an agent, a berth-runner and the reference plugins.
type node struct {
	t testing.TB
	*programs.Node
	bin     string // Berth's programs
	plugins string // folder of other plugins
	disk    string // where plugins keep their files
	runner  *exec.Cmd
	empty   nettest.State
}

func newNode(t testing.TB) *node {
	t.Helper()
	return newNodeWith(t, "pools: [{name: default, cidrs: [10.88.0.0/24, fd00:88::/64]}]\n", "bridge", "ptp", "macvlan", "host-local", "tuning", "portmap")
}

// newNodeWith makes a node whose agent has yaml as its configuration.
func newNodeWith(t testing.TB, yaml string, plugins ...string) *node {
	t.Helper()
	nettest.Need(t)
	peers := programs.Peers(t, plugins...)
	n := &node{t: t, bin: programs.Own(t), plugins: t.TempDir(), disk: t.TempDir()}
	for _, name := range plugins {
		must(t, os.Symlink(filepath.Join(peers, name), filepath.Join(n.plugins, name)))
	}
	for i, bridge := range []string{"br8", "br9"} {
		// a bridge without an address of its own takes its ports', and the plugin bridge's CHECK calls that a change
		nettest.Run(t, nil, fmt.Sprintf("ip link add %s address 02:00:5e:10:ff:%02x type bridge", bridge, i))
		nettest.Run(t, nil, "ip link set "+bridge+" addrgenmode none")
		nettest.Run(t, nil, "ip link set "+bridge+" up")
		t.Cleanup(func() { nettest.Run(t, nil, "ip link del "+bridge) })
	}
	n.Node = programs.RunNode(t, n.bin, yaml)
	n.startRunner()
	n.empty = n.state()
	return n
}

// state is what the oracle sees on the node, without what the test itself makes there: pods, and bridges, which are up while they have ports
// and which the kernel gives a route for multicast when they have had a port for about a second.
func (n *node) state() nettest.State {
	return nettest.Snapshot(n.t, nil).Without("conntrack").Without("mount").But([]string{"link br8 ", "link br9 ", "route inet6 multicast ff00::/8 dev br", "route inet6 multicast ff00::/8 dev lanport", "route inet6 multicast ff00::/8 dev uplink"})
}

// startRunner starts berth-runner, and waits until it answers.
func (n *node) startRunner() {
	n.t.Helper()
	n.startRunnerWith(new(bytes.Buffer))
}

// startRunnerWith starts it with further flags; said gets its log.
func (n *node) startRunnerWith(said *bytes.Buffer, flags ...string) {
	n.t.Helper()
	n.runner = exec.Command(filepath.Join(n.bin, "berth-runner"), append([]string{"--root", n.Root, "--bin-dir", n.plugins}, flags...)...)
	n.runner.Stderr = said
	must(n.t, n.runner.Start())
	n.t.Cleanup(func() {
		n.stopRunner()
		if n.t.Failed() {
			n.t.Logf("berth-runner's last words:\n%s", said)
		}
	})
	nettest.Eventually(n.t, "berth-runner's socket", func() bool { _, err := os.Stat(root.Dir(n.Root).RunnerSocket()); return err == nil })
}

// stopRunner kills berth-runner.
func (n *node) stopRunner() {
	if n.runner.ProcessState == nil {
		_ = n.runner.Process.Kill()
		_ = n.runner.Wait()
	}
}

// local is the ipam of a network with host-local.
func (n *node) local(subnet string) string {
	return fmt.Sprintf(`"ipam":{"type":"host-local","subnet":%q,"dataDir":%q}`, subnet, n.disk)
}

// files lists the files of a network that host-local keeps, without its own.
func (n *node) files() (all []string) {
	n.t.Helper()
	must(n.t, filepath.WalkDir(n.disk, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && d.Name() != "lock" && !strings.HasPrefix(d.Name(), "last_reserved_ip") && !strings.HasPrefix(d.Name(), "how.") {
			all = append(all, strings.TrimPrefix(path, n.disk+"/"))
		}
		return err
	}))
	return all
}

// keys are those of a configuration that has others make all networks of a pod.
func (n *node) keys(delegates ...string) []string {
	return []string{fmt.Sprintf(`"binDir":%q`, n.plugins), `"delegates":[` + strings.Join(delegates, ",") + `]`}
}

// three are networks of three plugins.
func (n *node) three() []string {
	return n.keys(
		`{"cniVersion":"1.0.0","name":"one","type":"ptp",`+n.local("10.1.0.0/24")+`}`,
		`{"cniVersion":"1.0.0","name":"two","plugins":[{"type":"bridge","bridge":"br9",`+n.local("10.2.0.0/24")+`},{"type":"tuning","sysctl":{"net.ipv4.conf.IFNAME.arp_filter":"1"}}]}`,
		`{"cniVersion":"0.4.0","name":"three","type":"macvlan","master":"br8",`+n.local("10.3.0.0/24")+`}`,
	)
}

// add attaches a pod.
func (n *node) add(container string, pod *ns.Netns, keys ...string) types100.Result {
	n.t.Helper()
	raw, err := n.Exec("ADD", container, pod.Ref().Path, keys...)
	must(n.t, err)
	var r types100.Result
	must(n.t, json.Unmarshal(raw, &r))
	return r
}

// links are the names of a pod's links, sorted.
func (n *node) links(pod *ns.Netns) (names []string) {
	n.t.Helper()
	c, err := rtnl.Open(pod)
	must(n.t, err)
	defer c.Close()
	all, err := c.Links(func(l rtnl.Link) (bool, error) { return l.Name != "lo", nil })
	must(n.t, err)
	for _, l := range all {
		names = append(names, l.Name)
	}
	slices.Sort(names)
	return names
}

// nothingLeft waits until the node is as it was before.
func (n *node) nothingLeft() {
	n.t.Helper()
	diff := ""
	for end := time.Now().Add(nettest.Deadline); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if diff = n.empty.Diff(n.state()); diff == "" && len(n.files()) == 0 { // an IPAM plugin has its addresses back last
			break
		}
	}
	if diff != "" {
		n.t.Errorf("left behind after %s:\n%s", nettest.Deadline, diff)
	}
	n.Audit(n.t)
	if left := n.files(); len(left) > 0 {
		n.t.Errorf("host-local has kept %v", left)
	}
}

// A pod has three networks of other plugins: the result is the first one's, DEL takes all of them away, and the plugins find nothing
// that they have forgotten.
func TestThree(t *testing.T) {
	n := newNode(t)
	pod := nettest.Pod(t)
	r := n.add("c1", pod, n.three()...)
	if got := n.links(pod); !slices.Equal(got, []string{"eth0", "net1", "net2"}) {
		t.Errorf("the pod has %v", got)
	}
	if len(r.IPs) != 1 || !strings.HasPrefix(r.IPs[0].Address.String(), "10.1.0.") {
		t.Errorf("the result is %+v", r)
	}
	if got := n.files(); len(got) != 3 {
		t.Errorf("host-local has %v", got)
	}
	prev, err := json.Marshal(r)
	must(t, err)
	check := append(n.three(), `"prevResult":`+string(prev))
	_, err = n.Exec("CHECK", "c1", pod.Ref().Path, check...)
	must(t, err)
	nettest.Run(t, pod, "ip link set net2 down")
	nettest.Run(t, pod, "ip addr flush dev net2")
	_, err = n.Exec("CHECK", "c1", pod.Ref().Path, check...)
	programs.WantError(t, err, 103, "net2")
	_, err = n.Exec("DEL", "c1", pod.Ref().Path, n.three()...)
	must(t, err)
	if got := n.files(); len(got) != 0 {
		t.Errorf("after DEL's answer host-local has %v", got)
	}
	n.nothingLeft()
}
