package strangers

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"go.yaml.in/yaml/v3"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/internal/runner/client"
	"github.com/berth-net/berth/test/programs"
)

// container is berth-runner's container, as the chart has it.
type container struct {
	Name            string
	Command         []string
	Env             []struct{ Name, Value string }
	SecurityContext struct {
		Capabilities struct{ Add []string }
	} `yaml:"securityContext"`
}

// readContainer reads berth-runner's container of the plain manifest.
func readContainer(t *testing.T) container {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(programs.Tree(t), "deploy/kubernetes/networks.yaml"))
	must(t, err)
	for dec := yaml.NewDecoder(strings.NewReader(string(raw))); ; {
		var o struct {
			Spec struct {
				Template struct {
					Spec struct{ Containers []container }
				}
			}
		}
		if err := dec.Decode(&o); err == io.EOF {
			t.Fatal("the manifest has no container berth-runner")
		} else if err != nil {
			t.Fatal(err)
		}
		for _, c := range o.Spec.Template.Spec.Containers {
			if c.Name == "berth-runner" {
				return c
			}
		}
	}
}

// host starts a process 1 of its own process ids, in a mount namespace where alone there are plugins, as on a node.
// It returns the process's id. All processes of these ids end with it.
func host(t *testing.T, plugins string) (pid string) {
	t.Helper()
	cmd := exec.Command("unshare", "--pid", "--fork", "--kill-child", "--mount", "--propagation", "private", "--mount-proc", "sh", "-ec",
		"mount -t tmpfs node /opt; mkdir -p /opt/cni/bin; cp "+plugins+"/* /opt/cni/bin; echo ready; exec sleep infinity")
	out, err := cmd.StdoutPipe()
	must(t, err)
	cmd.Stderr = os.Stderr
	must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if line, _ := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("the node's process says %q", line)
	}
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", cmd.Process.Pid))
	must(t, err)
	return strings.TrimSpace(string(raw))
}

// run starts berth-runner as a container runtime does: with the container's rights, the node's process ids and network, other files than
// the node's, and a /proc/sys that cannot be written.
func (c container) run(t *testing.T, pid string, dir root.Dir) {
	t.Helper()
	script := "mount -t tmpfs container /opt; mount --bind /proc/sys /proc/sys; mount -o remount,bind,ro /proc/sys; exec \"$@\""
	args := []string{"--target", pid, "--pid", "unshare", "--mount", "--propagation", "private", "--mount-proc", "sh", "-ec", script, "sh",
		"setpriv", "--inh-caps=-all", "--bounding-set=-all,+" + strings.ToLower(strings.Join(c.SecurityContext.Capabilities.Add, ",+")),
		filepath.Join(programs.Own(t), c.Command[0])}
	cmd := exec.Command("nsenter", append(append(args, c.Command[1:]...), "--root", string(dir))...)
	for _, v := range c.Env {
		cmd.Env = append(cmd.Env, v.Name+"="+v.Value)
	}
	cmd.Stderr = os.Stderr // a file: Wait, which is called before the process 1 of host ends, must not wait for berth-runner
	must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
}

// networksOfOthers are lists of plugins.
var networksOfOthers = map[string]string{
	"bridge": `{"cniVersion":"1.0.0","name":"one","plugins":[
		{"type":"bridge","bridge":"br-one","isGateway":true,"ipMasq":true,"ipMasqBackend":"nftables","ipam":{"type":"host-local","subnet":"10.66.0.0/24","dataDir":"/opt/state"}},
		{"type":"tuning","sysctl":{"net.ipv4.conf.net1.arp_ignore":"1"}},
		{"type":"portmap","backend":"nftables","capabilities":{"portMappings":true}}]}`,
	"macvlan": `{"cniVersion":"1.0.0","name":"two","plugins":[
		{"type":"macvlan","master":"uplink","ipam":{"type":"host-local","subnet":"10.67.0.0/24","dataDir":"/opt/state"}}]}`,
	"ptp": `{"cniVersion":"1.0.0","name":"three","plugins":[
		{"type":"ptp","ipam":{"type":"host-local","subnet":"10.68.0.0/24","dataDir":"/opt/state"}}]}`,
}

// The reference plugins make and release networks with the rights that the chart gives to berth-runner's container: veths, bridges and
// macvlans, addresses in files of the node, sysctls of node and pod, nftables by the node's program.
func TestRunnerOfTheChart(t *testing.T) {
	nettest.Need(t)
	programs.Root(t, "only root has the capabilities of the container")
	programs.Need(t, "unshare", "nsenter", "setpriv", "nft")
	peers := programs.Peers(t, "bridge", "macvlan", "ptp", "host-local", "tuning", "portmap")
	nettest.Run(t, nil, "ip link add uplink type veth peer name other")
	nettest.Run(t, nil, "ip link set uplink up")
	nettest.Sysctl(t, nil, "ipv4/ip_forward", "0")
	pod := nettest.Pod(t)
	dir := root.Dir(t.TempDir())
	readContainer(t).run(t, host(t, peers), dir)
	c := client.New(dir.RunnerSocket())
	t.Cleanup(c.Close)
	folders := []string{"/opt/cni/bin"}
	var why error
	nettest.Eventually(t, "berth-runner to find a plugin of the node", func() bool {
		_, why = c.Find(t.Context(), "bridge", folders)
		return why == nil
	})
	empty := nettest.Snapshot(t, pod)
	for name, text := range networksOfOthers {
		list, err := libcni.NetworkConfFromBytes([]byte(text))
		must(t, err)
		cni := libcni.NewCNIConfigWithCacheDir(folders, t.TempDir(), &client.Exec{Client: c})
		rt := &libcni.RuntimeConf{ContainerID: name, NetNS: pod.Ref().Path, IfName: "net1", CapabilityArgs: map[string]any{
			"portMappings": []map[string]any{{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}},
		}}
		if _, err := cni.AddNetworkList(t.Context(), list, rt); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		must(t, cni.CheckNetworkList(t.Context(), list, rt), cni.DelNetworkList(t.Context(), list, rt))
	}
	nettest.Same(t, empty, nettest.Snapshot(t, pod), "the plugins left something in the pod")
}
