package cluster

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// node is a machine with a containerd, a kubelet and a berthd.
type node struct {
	*machine
	number int
	host   int    // the last part of its addresses: number, until they change
	far    bool   // it is behind a router
	card   int    // which network card it has: each has a MAC of its own
	bin    string // folder of Berth's programs

	// What berthd.yaml says beyond the node's name.
	pooled       bool   // pods get addresses of the cluster's pools
	routing      string // "": the default
	cooldown     string // "": the default
	sweeps       string // time between two; "": the default
	healthConfig string // such as ", health: {interval: 1s}"

	containerd, kubelet, proxy, berthd *daemon
}

// cgroupPrefix is what the names of nodes' cgroups begin with; the test's PID and the node's name follow.
const cgroupPrefix = "berth-cluster-"

// cgroup is the cgroup of the node's pods.
func (n *node) cgroup() string {
	return "/" + cgroupPrefix + strconv.Itoa(os.Getpid()) + "-" + nodeName(n.number)
}

func (n *node) address4() string {
	if n.far {
		return fmt.Sprintf("198.51.100.%d", n.host)
	}
	return fmt.Sprintf("192.0.2.%d", n.host)
}

func (n *node) address6() string {
	if n.far {
		return fmt.Sprintf("2001:db8:1::%d", n.host)
	}
	return fmt.Sprintf("2001:db8::%d", n.host)
}

// nodeName is the name of the n-th node, from 1 on.
func nodeName(n int) string { return "n" + strconv.Itoa(n) }

// startNode starts a node, and returns when its containerd has the pods' image. No kubelet runs there yet.
func startNode(t *testing.T, number int, far bool) *node {
	t.Helper()
	n := &node{number: number, host: number, far: far, bin: programs.Own(t)}
	programs.MakeCgroup(t, n.cgroup())
	n.machine = startMachine(t, nodeName(number), nettest.Node(t))
	n.connect()
	n.startContainerd()
	return n
}

// uplink is the outer end of the node's link to others.
func (n *node) uplink() string { return "u" + n.name }

// connect gives the node an uplink into the bridge or, if it is far, to the router alone.
func (n *node) connect() {
	n.t.Helper()
	up, mac, at := n.uplink(), fmt.Sprintf("02:00:00:00:%02x:%02x", n.card, n.number), filepath.Base(n.net.Ref().Path)
	// A former test's node is gone, but the kernel keeps its namespace for minutes if TCP connections were left that nobody closed.
	nettest.Eventually(n.t, "a former test's node to be cut off", func() bool {
		link, err := netlink.LinkByName(up)
		if err == nil {
			_ = netlink.LinkDel(link) // fails if the kernel has ended the namespace meanwhile
		}
		return err != nil
	})
	outside := []string{
		"ip link add " + up + " type veth peer name eth0 address " + mac + " netns " + at,
		"ip link set " + up + " addrgenmode none",
	}
	inside := []string{"ip link set eth0 addrgenmode none up", fmt.Sprintf("ip addr add fe80::%d/64 dev eth0 nodad", n.number)} // not of the MAC
	if n.far {
		outside = append(outside,
			"ip link set "+up+" up", "ip addr add "+world4+"/32 dev "+up, "ip addr add "+world6+"/128 dev "+up+" nodad",
			"ip addr add fe80::fe/64 dev "+up+" nodad", // from which a router asks for neighbours
			"ip route add "+n.address4()+"/32 dev "+up, "ip route add "+n.address6()+"/128 dev "+up)
		inside = append(inside,
			"ip addr add "+n.address4()+"/32 dev eth0", "ip addr add "+n.address6()+"/128 dev eth0 nodad",
			"ip route add "+world4+" dev eth0", "ip route add "+world6+" dev eth0")
	} else {
		outside = append(outside, "ip link set "+up+" master br0 up")
		inside = append(inside, "ip addr add "+n.address4()+"/24 dev eth0", "ip addr add "+n.address6()+"/64 dev eth0 nodad")
	}
	for _, command := range outside {
		nettest.Run(n.t, nil, command)
	}
	for _, command := range append(inside, defaults...) {
		nettest.Run(n.t, n.net, command)
	}
}

// defaults are a node's default routes.
var defaults = []string{"ip route add default via " + world4, "ip route add default via " + world6}

// containerdConfig is containerd 1.6's (version 2), with its default folders. The native snapshotter copies an image for each
// container, and works on every file system.
const containerdConfig = `version = 2
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs", "io.containerd.tracing.processor.v1.otlp"]
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + imageName + `"
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
`

func (n *node) startContainerd() {
	n.t.Helper()
	n.write("etc/containerd/config.toml", containerdConfig)
	n.containerd = n.daemon(found(n.t, "containerd"))
	n.waitContainerd()
	n.load(writeImage(n.t))
}

// waitContainerd waits until the node's containerd serves. A kubelet ends if there is none yet.
func (n *node) waitContainerd() {
	n.t.Helper()
	ctr := found(n.t, "ctr")
	n.containerd.until("containerd to serve", func() bool {
		_, err := n.run(ctr, "version")
		return err == nil
	})
}

// load gives the node's containerd an image.
func (n *node) load(image string) {
	n.t.Helper()
	n.mustRun(found(n.t, "ctr"), "--namespace", "k8s.io", "images", "import", "--snapshotter", "native", image)
}

func (n *node) startBerth(c *control) {
	n.t.Helper()
	n.write("etc/berth/kubeconfig", c.kubeconfig(agent))
	n.configure()
	n.berthd = n.daemon(filepath.Join(n.bin, "berthd"))
	n.berthd.until("berthd to serve", n.serves)
	n.berth("install")
}

// configure writes the agent's configuration.
func (n *node) configure() {
	n.t.Helper()
	config := "kubernetes: {node: " + n.name + ", kubeconfig: /etc/berth/kubeconfig" + n.healthConfig
	if n.pooled {
		config += ", addresses: " + string(ofPools)
	}
	if n.routing != "" {
		config += ", routing: " + n.routing
	}
	config += "}\n"
	if n.cooldown != "" {
		config += "cooldown: " + n.cooldown + "\n"
	}
	if n.sweeps != "" {
		config += "sweepInterval: " + n.sweeps + "\n"
	}
	n.write("etc/berth/berthd.yaml", config)
}

// serves reports whether the node's agent serves requests.
func (n *node) serves() bool {
	_, err := n.run(filepath.Join(n.bin, "berth"), "status")
	return err == nil
}

// berth runs the CLI, which may not fail.
func (n *node) berth(args ...string) string {
	n.t.Helper()
	return n.mustRun(filepath.Join(n.bin, "berth"), args...)
}

// kubeletConfig is for a machine with cgroups of version 1, and without CAP_SYS_RESOURCE. The cluster's network lets
// nobody else in, so the kubelet asks nobody who they are. %s is the cgroup of the node's pods.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupRoot: %s
cgroupsPerQOS: false
enforceNodeAllocatable: []
localStorageCapacityIsolation: false
failSwapOn: false
oomScoreAdj: 0
makeIPTablesUtilChains: false
resolvConf: ""
clusterDNS: [` + clusterDNS + `]
clusterDomain: cluster.local
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 1Mi}
nodeStatusUpdateFrequency: 1s # a node whose network comes is ready at once
nodeStatusReportFrequency: 5m
`

func (n *node) startKubelet(c *control) {
	n.t.Helper()
	n.write("etc/kubernetes/kubeconfig", c.kubeconfig(kubeletOf(n.name)))
	n.write("etc/kubernetes/kubelet.yaml", fmt.Sprintf(kubeletConfig, n.cgroup()))
	n.kubelet = n.daemon(c.program("kubelet"), n.kubeletArgs()...)
}

func (n *node) kubeletArgs() []string {
	return []string{"--config=/etc/kubernetes/kubelet.yaml", "--kubeconfig=/etc/kubernetes/kubeconfig",
		"--hostname-override=" + n.name, "--node-ip=" + n.address4() + "," + n.address6()}
}

// proxyConfig is for a network namespace in which nobody may change the limits of connection tracking.
const proxyConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clientConnection: {kubeconfig: /etc/kubernetes/proxy-kubeconfig}
conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`

func (n *node) startProxy(c *control) {
	n.t.Helper()
	n.write("etc/kubernetes/proxy-kubeconfig", c.kubeconfig(proxy))
	n.write("etc/kubernetes/proxy.yaml", proxyConfig)
	n.proxy = n.daemon(c.program("kube-proxy"), "--config=/etc/kubernetes/proxy.yaml", "--hostname-override="+n.name)
}

// found returns the path of a program.
func found(t testing.TB, name string) string {
	t.Helper()
	programs.Need(t, name)
	return nettest.Program(t, name)
}

// ails says why the node's agent cannot attach pods; "" if it can.
func (n *node) ails() string {
	n.t.Helper()
	var status struct{ Error string }
	must(n.t, json.Unmarshal([]byte(n.berth("status", "-o", "json")), &status))
	return status.Error
}

// attachments returns the attachments of the node's agent.
func (n *node) attachments() (all []api.Attachment) {
	n.t.Helper()
	must(n.t, json.Unmarshal([]byte(n.berth("attachments", "-o", "json")), &all))
	return all
}

// released reports whether the node's agent answers and has no attachment, not even one that it is still releasing.
func (n *node) released() bool {
	out, err := n.run(filepath.Join(n.bin, "berth"), "attachments", "-o", "json")
	return err == nil && strings.TrimSpace(out) == "[]"
}
