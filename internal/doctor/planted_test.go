package doctor

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/api/client"
	"github.com/berth-net/berth/internal/boottime"
	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
)

// write writes a file, with its folders.
func write(t *testing.T, path, content string) {
	t.Helper()
	nettest.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	nettest.Must(t, os.WriteFile(path, []byte(content), 0o644))
}

// mount mounts a tmpfs on a folder until the test ends.
func mount(t *testing.T, folder, options string, flags uintptr) {
	t.Helper()
	nettest.Must(t, os.MkdirAll(folder, 0o755))
	if err := unix.Mount("doctor", folder, "tmpfs", flags, options); err != nil {
		t.Fatalf("mounting a tmpfs on %s: %v", folder, err)
	}
	t.Cleanup(func() { nettest.Must(t, unix.Unmount(folder, unix.MNT_DETACH)) })
}

const (
	stranger = "#!/bin/sh\necho '{\"cniVersion\":\"1.0.0\",\"supportedVersions\":[\"0.1.0\",\"1.1.0\"]}'\n"
	speaks   = stranger + "#" + built
	conflist = `{"cniVersion": "1.0.0", "name": "berth", "plugins": [{"type": "berth-cni", "root": %q%s}]}`
)

// sound returns a node on which nothing is wrong, with two uplinks. Its agent is this process.
func sound(t *testing.T) *Node {
	t.Helper()
	nettest.Need(t)
	dir := t.TempDir()
	n := New(root.Dir(filepath.Join(dir, "root")), filepath.Join(dir, "bin"), filepath.Join(dir, "net.d"))
	n.Host = filepath.Join(dir, "host")
	// The start of this process makes it look as if the agent began now.
	began, err := startOf(agent{pid: os.Getpid()})
	nettest.Must(t, err)
	a := agent{pid: os.Getpid(), status: api.Status{
		Version: "1", Instance: "abcdefghij", PID: os.Getpid(), Started: time.Now().Add(time.Duration(began - boottime.Now())),
		Attachments: map[string]int{}, Pools: []api.Pool{{Name: "default", CIDRs: []api.PoolCIDR{{CIDR: "10.88.0.0/16"}, {CIDR: "fd00:88::/64"}}}},
	}}
	n.agent = func() agent { return a }
	write(t, n.Root.Config(), "pools: [{name: default, cidrs: [10.88.0.0/16, 'fd00:88::/64']}, {name: other, cidrs: [10.89.0.0/24]}]\nconnections: 4096\n")
	mount(t, n.Root.Run(), "", 0)
	mount(t, n.Root.State(), "size=1g,nr_inodes=10000", 0)
	write(t, n.host(a.proc("status")), "Name:\tberthd\nCapEff:\t000001ffffffffff\nSeccomp:\t0\n")
	write(t, filepath.Join(n.BinDir, plugin), speaks)
	write(t, filepath.Join(n.BinDir, "loopback"), speaks)
	for _, p := range []string{plugin, "loopback"} {
		nettest.Must(t, os.Chmod(filepath.Join(n.BinDir, p), 0o755))
	}
	write(t, filepath.Join(n.ConfDir, "10-berth.conflist"), fmt.Sprintf(conflist, n.Root, ""))
	for i, link := range []string{"up0", "up1"} {
		nettest.Run(t, nil, "ip link add "+link+" type veth peer name "+link+"peer")
		t.Cleanup(func() { nettest.Run(t, nil, "ip link del "+link) })
		nettest.Run(t, nil, "ip link set "+link+" up")
		nettest.Run(t, nil, fmt.Sprintf("ip route add default dev %s metric %d", link, i+1))
		nettest.Sysctl(t, nil, "ipv4/conf/"+link+"/rp_filter", "0")
	}
	for _, name := range []string{"ipv4/conf/all/rp_filter", "ipv4/conf/all/route_localnet", "ipv4/conf/default/route_localnet"} {
		nettest.Sysctl(t, nil, name, "0")
	}
	for _, name := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		nettest.Sysctl(t, nil, name, "1")
	}
	return n
}

// away is an agent that does not run.
func away() agent { return agent{err: client.ErrAway} }

// reconfigure changes the configuration that the node has.
func (n *Node) reconfigure(t *testing.T, change func(*config.Config)) {
	t.Helper()
	r := n.config()
	nettest.Must(t, r.Err)
	c := *r.Config
	change(&c)
	n.config = func() config.Reading { return config.Reading{Config: &c} }
}

// pod makes a pod's link, and returns its index.
func pod(t *testing.T) string {
	t.Helper()
	const name = "babcdaaaaaaaaaa"
	nettest.Run(t, nil, "ip link add "+name+" type veth peer name podside")
	t.Cleanup(func() { nettest.Run(t, nil, "ip link del "+name) })
	return strconv.Itoa(nettest.Link(t, name).Attrs().Index)
}

// child starts a command's process, which the test's end kills, and returns the process's id.
func child(t *testing.T, cmd *exec.Cmd) int {
	t.Helper()
	nettest.Must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd.Process.Pid
}

// planted are faults, each made on a sound node, with the words that the fault's check has to
// say.
var planted = []struct {
	check, fault string
	plant        func(*testing.T, *Node)
	verdict      Verdict
	seen, fix    string // are parts of the check's answer
}{
	{"agent", "away", func(t *testing.T, n *Node) { n.agent = n.ask }, Bad, "no agent answers", "berthd --root "},
	{"agent", "cannot attach", func(t *testing.T, n *Node) {
		a := n.agent()
		a.cannot = &api.Error{Code: 50, Msg: "the disk is full"}
		n.agent = func() agent { return a }
	}, Bad, "the disk is full", "berth status"},
	{"agent", "its ledger's file is taken away", func(t *testing.T, n *Node) {
		a := n.agent()
		a.status.Displaced = "stat /var/lib/berth/ledger.db: no such file or directory"
		n.agent = func() agent { return a }
	}, Bad, "the ledger: stat /var/lib/berth/ledger.db", "restart berthd"},
	{"agent", "restores", func(t *testing.T, n *Node) {
		a := n.agent()
		a.status.Restoring = true
		n.agent = func() agent { return a }
	}, Warn, "restores", "berth status"},
	{"agent-place", "another namespace", func(t *testing.T, n *Node) {
		pid := child(t, nettest.Command(nettest.Node(t), "sleep", "600"))
		ours, err := os.Readlink("/proc/self/ns/net")
		nettest.Must(t, err)
		nettest.Eventually(t, "the process to enter its namespace", func() bool {
			its, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
			return err == nil && its != ours
		})
		n.agent = func() agent { return agent{pid: pid} }
	}, Warn, "is in net:[", "nsenter -t "},
	{"capabilities", "a capability", func(t *testing.T, n *Node) {
		write(t, n.host(n.agent().proc("status")), fmt.Sprintf("CapEff:\t%016x\n", uint64(0x1ffffffffff&^(1<<unix.CAP_SYS_PTRACE))))
	}, Bad, "lacks CAP_SYS_PTRACE", "CapabilityBoundingSet=CAP_SYS_PTRACE"},
	{"seccomp", "a unit's filter", func(t *testing.T, n *Node) { filtered(t, n, "berthd.service", "setns fsopen futex") },
		Bad, "berthd.service refuses fsconfig, fsmount,", "SystemCallFilter=fsconfig fsmount"},
	{"seccomp", "a list of what is refused", func(t *testing.T, n *Node) { filtered(t, n, "berthd.service", "~setns mount") },
		Bad, "refuses setns", "SystemCallFilter=setns"},
	{"seccomp", "a filter of somebody", func(t *testing.T, n *Node) { filtered(t, n, "docker-1.scope", "") }, Unknown, "no systemd unit's", "its log"},

	{"router-advertisements", "an address remains", func(t *testing.T, n *Node) {
		nettest.Sysctl(t, nil, "ipv6/conf/all/forwarding", "0")
		nettest.Sysctl(t, nil, "ipv6/conf/up1peer/accept_ra", "0")
		nettest.Run(t, nil, "ip link set up1peer up")
		nettest.Run(t, nil, "ip -6 addr add fe80::1/64 dev up1peer nodad")
		nettest.Eventually(t, "up1 to take an advertisement", func() bool {
			nettest.Advertise(t, nil, "up1peer", netip.MustParseAddr("fe80::1"), netip.MustParsePrefix("2001:db8:1::/64"))
			return strings.Contains(nettest.Snapshot(t, nil).Only("address").String(), "2001:db8:1:")
		})
		nettest.Sysctl(t, nil, "ipv6/conf/all/forwarding", "1")
		if strings.Contains(nettest.Snapshot(t, nil).Only("route").String(), "via fe80::1") {
			t.Error("the kernel keeps the default route: this test is of no use")
		}
	}, Bad, "takes no more router advertisements: net.ipv6.conf.up1.accept_ra = 1", "sysctl -w net.ipv6.conf.up1.accept_ra=2"},
	{"router-advertisements", "before somebody turns forwarding on", func(t *testing.T, n *Node) {
		nettest.Sysctl(t, nil, "ipv6/conf/all/forwarding", "0")
		nettest.Sysctl(t, nil, "ipv6/conf/up0/accept_ra", "1")
		nettest.Sysctl(t, nil, "ipv6/conf/up1/accept_ra", "1")
		nettest.Run(t, nil, "ip -6 route add 2001:db8:1::/64 dev up0 proto ra table 77")
		nettest.Run(t, nil, "ip -6 route add 2001:db8:2::/64 dev up1 proto static")
		if f := lookRouters(t.Context(), n); f.Verdict != OK || f.Seen != "net.ipv6.conf.up0.accept_ra = 1" {
			t.Errorf("before an agent that turns forwarding on: %+v", f)
		}
		n.reconfigure(t, func(c *config.Config) { c.Forwarding = false })
	}, Warn, "turns IPv6 forwarding on: net.ipv6.conf.up0.accept_ra = 1", "sysctl -w net.ipv6.conf.up0.accept_ra=2"},
	{"forwarding", "IPv4", func(t *testing.T, n *Node) { nettest.Sysctl(t, nil, "ipv4/ip_forward", "0") },
		Bad, "net.ipv4.ip_forward = 0", "sysctl -w net.ipv4.ip_forward=1"},
	{"forwarding", "IPv6", func(t *testing.T, n *Node) { nettest.Sysctl(t, nil, "ipv6/conf/all/forwarding", "0") },
		Bad, "net.ipv6.conf.all.forwarding = 0", "sysctl -w net.ipv6.conf.all.forwarding=1"},
	{"forwarding", "of an uplink", func(t *testing.T, n *Node) {
		nettest.Sysctl(t, nil, "ipv4/conf/up1/forwarding", "0")
		n.agent = away
	}, Bad, "net.ipv4.conf.up1.forwarding = 0", "sysctl -w net.ipv4.conf.up1.forwarding=1"},
	{"forwarding", "before the agent runs", func(t *testing.T, n *Node) {
		nettest.Sysctl(t, nil, "ipv4/ip_forward", "0")
		n.agent = away
	}, Warn, "net.ipv4.ip_forward = 0", "when it starts"},
	{"forwarding", "nobody turns it on", func(t *testing.T, n *Node) {
		nettest.Sysctl(t, nil, "ipv4/ip_forward", "0")
		n.agent = away
		n.reconfigure(t, func(c *config.Config) { c.Forwarding = false })
	}, Bad, "net.ipv4.ip_forward = 0", "forwarding: true"},
	{"rp-filter", "of a link", func(t *testing.T, n *Node) { nettest.Sysctl(t, nil, "ipv4/conf/up1/rp_filter", "1") },
		Warn, "strict with up1", "sysctl -w net.ipv4.conf.up1.rp_filter=2"},
	{"rp-filter", "of all links", func(t *testing.T, n *Node) { nettest.Sysctl(t, nil, "ipv4/conf/all/rp_filter", "1") },
		Warn, "strict with up0, up1", "up0.rp_filter=2"},
	{"route-localnet", "of all links", func(t *testing.T, n *Node) { nettest.Sysctl(t, nil, "ipv4/conf/all/route_localnet", "1") },
		Warn, "net.ipv4.conf.all.route_localnet = 1", "sysctl -w net.ipv4.conf.all.route_localnet=0"},
	{"route-localnet", "of a pod's link", func(t *testing.T, n *Node) {
		pod(t)
		nettest.Sysctl(t, nil, "ipv4/conf/babcdaaaaaaaaaa/route_localnet", "1")
	}, Warn, "net.ipv4.conf.babcdaaaaaaaaaa.route_localnet = 1", ""},
	{"conntrack-room", "a pod that may have all", func(t *testing.T, n *Node) {
		n.reconfigure(t, func(c *config.Config) { c.Connections = 1 << 30 })
	}, Warn, "one pod may have 1073741824", "nf_conntrack_max=2147483648"},
	{"conntrack-room", "no limit", func(t *testing.T, n *Node) { n.reconfigure(t, func(c *config.Config) { c.Connections = 0 }) },
		Warn, "one pod may have all of them", "connections:"},

	{"firewall", "of iptables", func(t *testing.T, n *Node) {
		nettest.Run(t, nil, "iptables-nft -P FORWARD DROP")
		t.Cleanup(func() { nettest.Run(t, nil, "nft flush ruleset") })
	}, Bad, "chain ip filter FORWARD { type filter hook forward priority 0; policy drop; } drops what pods send by IPv4",
		"iptables -I FORWARD -s 10.88.0.0/16 -j ACCEPT"},
	{"firewall", "of firewalld", func(t *testing.T, n *Node) {
		load(t, "add table inet firewalld; add chain inet firewalld filter_FORWARD { type filter hook forward priority 10; };"+
			"add rule inet firewalld filter_FORWARD ct state { established, related } accept; add rule inet firewalld filter_FORWARD reject")
	}, Bad, "chain inet firewalld filter_FORWARD", "--add-source=fd00:88::/64; firewall-cmd --reload"},
	{"firewall", "of some packets", func(t *testing.T, n *Node) {
		load(t, "add table ip mine; add chain ip mine f { type filter hook forward priority 0; }; add rule ip mine f tcp dport 25 drop")
	}, Warn, "may drop what pods send by IPv4", "nft insert rule ip mine f ip saddr 10.88.0.0/16 accept"},
	{"firewall-legacy", "policy", func(t *testing.T, n *Node) {
		nettest.Run(t, nil, "iptables-legacy -P FORWARD DROP")
		t.Cleanup(func() {
			nettest.Run(t, nil, "iptables-legacy -P FORWARD ACCEPT")
			nettest.Run(t, nil, "iptables-legacy -F FORWARD")
		})
	}, Bad, "iptables-legacy drops", "iptables-legacy -I FORWARD -s 10.88.0.0/16 -j ACCEPT"},

	{"networkd", "by default", func(t *testing.T, n *Node) { write(t, n.host("/run/systemd/netif/state"), "") },
		Warn, "ManageForeignRoutes=yes and ManageForeignRoutingPolicyRules=yes", "/etc/systemd/networkd.conf.d/berth.conf"},
	{"networkd", "one setting", func(t *testing.T, n *Node) {
		write(t, n.host("/run/systemd/netif/state"), "")
		write(t, n.host("/etc/systemd/networkd.conf"), "[Network]\nManageForeignRoutes=no\n#ManageForeignRoutingPolicyRules=no\n")
	}, Warn, "with ManageForeignRoutingPolicyRules=yes", `printf '[Network]\nManageForeignRoutingPolicyRules=no\n'`},
	{"networkd", "a file in front", func(t *testing.T, n *Node) {
		write(t, n.host("/run/systemd/netif/state"), "")
		for _, key := range []string{"ManageForeignRoutes", "ManageForeignRoutingPolicyRules"} {
			write(t, n.host("/usr/lib/systemd/networkd.conf.d/"+key+".conf"), "[Network]\n"+key+" = no\n")
		}
		write(t, n.host("/etc/systemd/networkd.conf.d/ManageForeignRoutes.conf"), "") // takes the place of the file in /usr/lib
	}, Warn, "with ManageForeignRoutes=yes", ""},
	{"networkd", "a pod's link", func(t *testing.T, n *Node) {
		write(t, n.host("/run/systemd/netif/state"), "")
		write(t, n.host("/run/systemd/netif/links/"+pod(t)), "ADMIN_STATE=configured\nOPER_STATE=routable\n")
	}, Bad, "configures the links of pods: babcdaaaaaaaaaa", "Name=!b*"},
	{"networkmanager", "by default", func(t *testing.T, n *Node) { nettest.Must(t, os.MkdirAll(n.host("/run/NetworkManager"), 0o755)) },
		Warn, "no unmanaged-devices", "unmanaged-devices+=driver:veth"},
	{"networkmanager", "other devices", func(t *testing.T, n *Node) {
		write(t, n.host("/run/NetworkManager/conf.d/x.conf"), "[keyfile]\nunmanaged-devices=interface-name:cali*;interface-name:=b*\n")
	}, Warn, "no unmanaged-devices", ""},
	{"networkmanager", "a pod's link", func(t *testing.T, n *Node) {
		write(t, n.host("/run/NetworkManager/devices/"+pod(t)), "[device]\nmanaged=true\n")
	}, Bad, "manages the links of pods: babcdaaaaaaaaaa", "nmcli general reload"},
	{"pools", "overlap", func(t *testing.T, n *Node) {
		nettest.Run(t, nil, "ip address add 10.88.3.1/24 dev up0")
	}, Bad, "pool default: 10.88.0.0/16 overlaps the address 10.88.3.1/24 of up0", "choose another CIDR"},
	{"pools", "left by an agent that does not run", func(t *testing.T, n *Node) {
		nettest.Run(t, nil, fmt.Sprintf("ip route add unreachable 10.88.0.0/17 proto 98 metric %d", 1<<20|77))
		t.Cleanup(func() { nettest.Run(t, nil, fmt.Sprintf("ip route del unreachable 10.88.0.0/17 metric %d", 1<<20|77)) })
	}, Warn, "pool default: 10.88.0.0/16 overlaps the pool's route 10.88.0.0/17 of another agent, which does not run", "ip route del unreachable 10.88.0.0/17 metric 1048653"},
	{"pools", "overlap of a pool that is in the file, and not yet in force", func(t *testing.T, n *Node) {
		write(t, n.Root.Config(), "pools: [{name: default, cidrs: [10.91.0.0/16]}]\n")
		nettest.Run(t, nil, "ip address add 10.91.3.1/24 dev up0")
	}, Bad, "pool default: 10.91.0.0/16 overlaps the address 10.91.3.1/24 of up0", "choose another CIDR"},
	{"pools", "a file that the agent refused", func(t *testing.T, n *Node) {
		a := n.agent()
		a.status.Refused = "pool CIDR 10.88.0.0/17 overlaps 10.88.0.0/16 of pool default, which is still in use"
		n.agent = func() agent { return a }
	}, Bad, "the former one is in force: pool CIDR 10.88.0.0/17", "systemctl reload berthd"},
	{"pools", "a file with an error", func(t *testing.T, n *Node) { write(t, n.Root.Config(), "pool: []\n") }, Bad, "berthd.yaml", "berthd --check-config"},

	{"run-folder", "read-only", func(t *testing.T, n *Node) { mount(t, n.Root.Run(), "", unix.MS_RDONLY) }, Bad, "read-only", "remount,rw"},
	{"state-folder", "in memory", func(t *testing.T, n *Node) {}, Bad, "is a tmpfs: a reboot empties it", "mount a local disk"},
	{"state-folder", "read-only", func(t *testing.T, n *Node) { mount(t, n.Root.State(), "", unix.MS_RDONLY) }, Bad, "read-only", "remount,rw"},
	{"netns-mounts", "no /var/run", func(t *testing.T, n *Node) { nettest.Must(t, os.MkdirAll(n.host("/run/netns"), 0o755)) }, Bad, "/var/run/netns, by which", "a symlink to /run"},
	{"netns-mounts", "another /var/run", func(t *testing.T, n *Node) {
		for _, dir := range []string{"/run/netns", "/var/run/netns"} {
			nettest.Must(t, os.MkdirAll(n.host(dir), 0o755))
		}
	}, Bad, "does not lead to /run/netns", "a symlink to /run"},
	{"space", "no room", func(t *testing.T, n *Node) { mount(t, n.Root.State(), "size=1m", 0) }, Bad, "1 MiB and", "du -xh"},
	{"space", "little room", func(t *testing.T, n *Node) { mount(t, n.Root.State(), "size=100m,nr_inodes=10000", 0) }, Warn, "100 MiB and", "du -xh"},
	{"space", "no inodes", func(t *testing.T, n *Node) { mount(t, n.Root.State(), "size=1g,nr_inodes=100", 0) }, Bad, "and 9", "df -i"},
	{"clock", "a step", func(t *testing.T, n *Node) {
		a := n.agent()
		a.status.Started = a.status.Started.Add(-time.Hour)
		n.agent = func() agent { return a }
	}, Warn, "was set by 1h0m", "set-ntp"},

	{"runner", "away", func(t *testing.T, n *Node) {
		n.reconfigure(t, func(c *config.Config) { c.Kubernetes = &config.Kubernetes{Networks: true} })
	}, Bad, "no berth-runner answers at", "berth-runner --root "},
	{"plugin", "missing", func(t *testing.T, n *Node) { nettest.Must(t, os.Remove(filepath.Join(n.BinDir, plugin))) }, Bad, "is not there", "berth install --root "},
	{"plugin", "no program", func(t *testing.T, n *Node) { nettest.Must(t, os.Chmod(filepath.Join(n.BinDir, plugin), 0o644)) }, Bad, "permission denied", "noexec"},
	{"plugin", "another program", func(t *testing.T, n *Node) { write(t, filepath.Join(n.BinDir, plugin), "#!/bin/sh\necho '{}'\n") }, Bad, `it answers "{}`, "berth install"},
	{"plugin", "another plugin, copied over it", func(t *testing.T, n *Node) { write(t, filepath.Join(n.BinDir, plugin), stranger) }, Bad, "is not Berth's", "berth install"},
	{"runtime", "none", func(*testing.T, *Node) {}, Warn, "no runtime that Berth knows is here", "install one, and then: berth install"},
	{"runtime", "looks elsewhere", func(t *testing.T, n *Node) { write(t, n.host("/etc/containerd/config.toml"), "version = 2\n") },
		Warn, "containerd looks for plugins in /opt/cni/bin (its default) and for networks in /etc/cni/net.d", "berth doctor --runtime containerd"},
	{"runtime", "cannot be read", func(t *testing.T, n *Node) {
		write(t, n.host("/etc/containerd/config.toml"), "version = 2\n[plugins\n")
	},
		Bad, "/etc/containerd/config.toml, line 2, ", "mend that file"},
	{"runtime", "another network", func(t *testing.T, n *Node) {
		write(t, n.host("/etc/crio/crio.conf"), fmt.Sprintf("[crio.network]\nplugin_dirs = [%q]\nnetwork_dir = %q\ncni_default_network = 'crio'\n", n.BinDir, n.ConfDir))
	}, Bad, "cri-o takes the network crio alone", "berth install --name crio"},
	{"loopback", "missing", func(t *testing.T, n *Node) {
		nettest.Must(t, os.Remove(filepath.Join(n.BinDir, "loopback")))
		write(t, n.host("/run/containerd/containerd.sock"), "")
	}, Bad, "is not there", "berth install"},
	{"loopback", "missing, as the runtime's configuration has it", func(t *testing.T, n *Node) {
		nettest.Must(t, os.Remove(filepath.Join(n.BinDir, "loopback")))
		write(t, n.host("/run/containerd/containerd.sock"), "")
		write(t, n.host("/etc/containerd/config.toml"), fmt.Sprintf("version = 3\n[plugins.'io.containerd.cri.v1.runtime'.cni]\nbin_dirs = [%q]\n", n.BinDir))
	}, Bad, "is not there", "berth install"},
	{"loopback", "no program", func(t *testing.T, n *Node) { nettest.Must(t, os.Chmod(filepath.Join(n.BinDir, "loopback"), 0o644)) }, Bad, "is no program", "berth install"},
	{"conflist", "another one first", func(t *testing.T, n *Node) {
		write(t, filepath.Join(n.ConfDir, "05-cilium.conflist"), `{"name":"cilium","plugins":[{"type":"cilium-cni"}]}`)
		write(t, filepath.Join(n.ConfDir, "06-bridge.conf"), `{"name":"bridge","type":"bridge"}`)
		write(t, filepath.Join(n.ConfDir, "01-notes.txt"), `nothing`)
	}, Bad, "05-cilium.conflist comes before", "mv "},
	{"conflist", "none", func(t *testing.T, n *Node) { nettest.Must(t, os.Remove(filepath.Join(n.ConfDir, "10-berth.conflist"))) }, Bad, "no configuration", "berth install"},
	{"conflist", "no folder", func(t *testing.T, n *Node) { nettest.Must(t, os.RemoveAll(n.ConfDir)) }, Bad, "no configuration", "berth install"},
	{"conflist", "cannot be read", func(t *testing.T, n *Node) { write(t, filepath.Join(n.ConfDir, "10-berth.conflist"), "{") }, Bad, "unexpected end of JSON", "berth install"},
	{"conflist", "one before cannot be read", func(t *testing.T, n *Node) { write(t, filepath.Join(n.ConfDir, "00.conf"), "{") }, Warn, "00.conf cannot be read", "mend it"},
	{"conflist", "another root", func(t *testing.T, n *Node) {
		write(t, filepath.Join(n.ConfDir, "10-berth.conflist"), fmt.Sprintf(conflist, "/elsewhere", ""))
	}, Bad, "the root /elsewhere", "berth --root /elsewhere doctor"},
	{"conflist", "an unknown pool", func(t *testing.T, n *Node) {
		write(t, filepath.Join(n.ConfDir, "10-berth.conflist"), fmt.Sprintf(conflist, n.Root, `, "pool": "typo"`))
	}, Bad, "names the pool typo", "name the pool"},
	{"conflist", "a misspelt key", func(t *testing.T, n *Node) {
		write(t, filepath.Join(n.ConfDir, "10-berth.conflist"), fmt.Sprintf(conflist, n.Root, `, "pol": "default"`))
	}, Bad, `perhaps "pool" is meant`, "mend it"},
	{"conflist", "a misspelt key, in a configuration of one plugin", func(t *testing.T, n *Node) {
		write(t, filepath.Join(n.ConfDir, "05.conf"), fmt.Sprintf(`{"cniVersion": "0.4.0", "name": "one", "type": "berth-cni", "root": %q, "mut": 1500}`, n.Root))
	}, Bad, `perhaps "mtu" is meant`, "mend it"},
	{"conflist", "a version that the plugin does not speak", func(t *testing.T, n *Node) {
		write(t, filepath.Join(n.ConfDir, "10-berth.conflist"), strings.Replace(fmt.Sprintf(conflist, n.Root, ""), "1.0.0", "9.0.0", 1))
	}, Bad, "9.0.0", "mend it"},
	{"conflist", "a chained plugin that is missing", func(t *testing.T, n *Node) {
		write(t, filepath.Join(n.ConfDir, "10-berth.conflist"), strings.Replace(fmt.Sprintf(conflist, n.Root, ""), "]}", `, {"type": "tuning"}]}`, 1))
	}, Bad, "chains the plugin tuning", "take it out"},
	{"conflist", "an unknown capability", func(t *testing.T, n *Node) {
		write(t, filepath.Join(n.ConfDir, "10-berth.conflist"), fmt.Sprintf(conflist, n.Root, `, "capabilities": {"portMapings": true, "ipRanges": false}`))
	}, Warn, `no capability portMapings: perhaps "portMappings" is meant`, "mend it"},
}

// load is `nft COMMANDS`, until the test ends.
func load(t *testing.T, commands string) {
	t.Helper()
	if out, err := exec.Command(nettest.Program(t, "nft"), commands).CombinedOutput(); err != nil {
		t.Fatalf("nft %s: %v\n%s", commands, err, out)
	}
	t.Cleanup(func() { nettest.Run(t, nil, "nft flush ruleset") })
}

// filtered gives the agent's process a filter, and a systemctl that says what is in it.
func filtered(t *testing.T, n *Node, unit, filter string) {
	t.Helper()
	a := n.agent()
	write(t, n.host(a.proc("status")), "Seccomp:\t2\n")
	write(t, n.host(a.proc("cgroup")), "0::/system.slice/"+unit+"\n")
	bin := filepath.Join(t.TempDir(), "systemctl")
	write(t, bin, "#!/bin/sh\necho '"+filter+"'\n")
	nettest.Must(t, os.Chmod(bin, 0o755))
	t.Setenv("PATH", filepath.Dir(bin)+":"+os.Getenv("PATH"))
}

// unsound are the checks that are not right, or may not be, on the node of sound: because of the
// machine that runs the tests, or because the node's state folder is in memory.
var unsound = map[string]bool{"state-folder": true, "clock": true, "netns-mounts": true, "runtime": true}

// judged are the checks whose faults no test can make on a node: TestJudged has these faults.
var judged = map[string]bool{"kernel-links": true, "kernel-nftables": true, "kernel-tbf": true, "kernel-police": true, "kernel-wireguard": true, "kernel-namespaces": true, "netns-mounts": true, "sync": true}

// Each check says that a sound node is right, and names the fault that is planted.
func TestPlanted(t *testing.T) {
	has := map[string]bool{}
	check := map[string]Check{}
	for _, c := range Checks() {
		check[c.Name] = c
	}
	for _, p := range planted {
		has[p.check] = true
		t.Run(p.check+"/"+p.fault, func(t *testing.T) {
			n := sound(t)
			if f := check[p.check].Look(t.Context(), n); f.Verdict != OK && !unsound[p.check] {
				t.Fatalf("on a sound node: %+v", f)
			}
			if p.check == "pools" { // a node does not read its configuration again
				n.config = n.read
			}
			p.plant(t, n)
			f := check[p.check].Look(t.Context(), n)
			if f.Verdict != p.verdict || !strings.Contains(f.Seen, p.seen) || !strings.Contains(f.Fix, p.fix) {
				t.Errorf("%+v\nwant %s, that %q is said, and to do %q", f, p.verdict, p.seen, p.fix)
			}
			if !mends(p.check, p.fault) {
				return
			}
			mend(t, f.Fix)
			if f := check[p.check].Look(t.Context(), n); f.Verdict != OK {
				t.Errorf("after the fix: %+v", f)
			}
		})
	}
	for name := range check {
		if !has[name] && !judged[name] {
			t.Errorf("nobody plants a fault for %s", name)
		}
	}
}

// mends reports whether a test can do what fixes a fault.
func mends(check, fault string) bool {
	switch check {
	case "forwarding":
		return fault == "IPv4" || fault == "IPv6"
	case "firewall":
		return fault != "of firewalld"
	case "conflist":
		return fault == "another one first"
	}
	return check == "router-advertisements" || check == "rp-filter" || check == "route-localnet" || check == "firewall-legacy"
}

// mend does what a finding says.
func mend(t *testing.T, fix string) {
	t.Helper()
	settings, is := strings.CutPrefix(fix, "sysctl -w ")
	if !is {
		if out, err := exec.Command("sh", "-c", fix).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", fix, err, out)
		}
		return
	}
	settings, _, _ = strings.Cut(settings, " #")
	for _, s := range strings.Fields(settings) {
		name, value, _ := strings.Cut(s, "=")
		nettest.Sysctl(t, nil, strings.ReplaceAll(strings.TrimPrefix(name, "net."), ".", "/"), value)
	}
}

// The faults that no test can make on a node are given to the judging functions.
func TestJudged(t *testing.T) {
	const private = "22 1 0:5 / / rw - ext4 /dev/sda rw\n23 22 0:6 / /run rw shared:5 - tmpfs tmpfs rw\n24 23 0:6 /netns /run/netns rw - tmpfs tmpfs rw\n25 24 0:4 net:[1] /run/netns/pod rw shared:9 - nsfs nsfs rw\n"
	for name, c := range map[string]struct {
		have Finding
		want Verdict
		seen string
	}{
		"links":                 {refused(fmt.Errorf("ip link add: %w", kernel.Classify(unix.EOPNOTSUPP)), ""), Bad, "this kernel refuses it: ip link add"},
		"links, not permitted":  {refused(fmt.Errorf("ip link add: %w", kernel.Classify(unix.EPERM)), ""), Unknown, "ip link add"},
		"nftables":              {judgeLacks(nft.Limit | nft.Sources), Warn, "nft_connlimit"},
		"all of nftables":       {judgeLacks(0), OK, "all rules"},
		"no tbf":                {judgeShaping(kernel.Classify(unix.ENOENT)), Warn, "refuses limits of bandwidth"},
		"no clsact":             {judgePolice(kernel.Classify(unix.EOPNOTSUPP)), Warn, "above their rates"},
		"no WireGuard":          {judgeWireGuard(kernel.Classify(unix.EOPNOTSUPP)), Bad, "pods of other nodes are out of reach"},
		"WireGuard":             {judgeWireGuard(nil), OK, "WireGuard devices"},
		"no programs allowed":   {judgePolice(kernel.Classify(unix.EPERM)), Unknown, "not permitted"},
		"identity":              {judgeIdentity(0), Warn, "by inodes alone"},
		"private mounts":        {judgeMounts(private), Bad, "/run/netns does not show"},
		"mounts that follow":    {judgeMounts(strings.Replace(private, "/run/netns rw", "/run/netns rw master:5", 1)), Warn, "/run/netns shows"},
		"mounts of /run":        {judgeMounts(strings.Split(private, "24 ")[0]), Warn, "/run shows"},
		"mounts hidden by /run": {judgeMounts(private + "30 22 0:9 / /run rw master:7 - tmpfs tmpfs rw\n"), Warn, "/run shows"},
		"a slow disk":           {judgeSync("/d", []time.Duration{time.Millisecond, 30 * time.Millisecond, 12 * time.Millisecond}), Warn, "takes 12ms (median of 3)"},
		"a fast disk":           {judgeSync("/d", []time.Duration{time.Millisecond, 30 * time.Millisecond, 9 * time.Millisecond}), OK, "takes 9ms"},
		"nfs":                   {judgeState("/d", unix.NFS_SUPER_MAGIC, false), Warn, "/d is a nfs"},
		"overlay":               {judgeState("/d", unix.OVERLAYFS_SUPER_MAGIC, false), Warn, "goes with its container"},
		"a local disk":          {judgeState("/d", unix.EXT4_SUPER_MAGIC, false), OK, "local disk"},
		"an old clock":          {judgeClock(time.Unix(0, 0), false, 0), Bad, "1970-01-01"},
		"a clock adrift":        {judgeClock(time.Now(), true, 0), Warn, "nobody keeps"},
		"a clock set back":      {judgeClock(time.Now(), true, -time.Hour), Warn, "was set by -1h"},
		"a good clock":          {judgeClock(time.Now(), false, time.Second), OK, "synchronised"},
		"a full table":          {judgeConntrack(990, 1000, 1, 10), Bad, "990 of 1000 entries: it is full"},
		"a nearly full table":   {judgeConntrack(800, 1000, 1, 10), Warn, "nearly full"},
		"many pods":             {judgeConntrack(0, 1000, 100, 10), Warn, "100 pods would have 10 each"},
		"enough for all":        {judgeConntrack(0, 262144, 250, 32768), OK, "0 of 262144"},
		"no inodes are told":    {judgeSpace("/d", 1<<40, 0, true), OK, "1048576 MiB free"},
	} {
		if c.have.Verdict != c.want || !strings.Contains(c.have.Seen, c.seen) || c.want == Bad && c.have.Fix == "" && name != "links" {
			t.Errorf("%s: %+v, want %s and %q", name, c.have, c.want, c.seen)
		}
	}
}

// drops knows the rules of legacy iptables that let pods through.
func TestDrops(t *testing.T) {
	const drop = "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD DROP [1:2]\n"
	for rules, want := range map[string]bool{
		"":                                  true,
		"-A FORWARD -i docker0 -j ACCEPT\n": true,
		"-A FORWARD -j ACCEPT\n":            false,
		"-A DOCKER-USER -s 10.88.0.0/16 -j ACCEPT\n":                 false,
		"-A FORWARD -s 10.88.0.0/16 -j DROP\n":                       true,
		"-A FORWARD -s 10.88.0.0/16 -p tcp -j ACCEPT\n":              false,
		"-A INPUT -j ACCEPT\n-A FORWARD -d 10.88.0.0/16 -j ACCEPT\n": true,
	} {
		if have := drops(drop+rules+"COMMIT\n", []string{"10.88.0.0/16"}); have != want {
			t.Errorf("%q drops: %t", rules, have)
		}
	}
	if drops("*filter\n:FORWARD ACCEPT [1:2]\nCOMMIT\n", nil) {
		t.Error("an accepting policy drops")
	}
}

// mostPods returns how many pods the pools have room for, at most usualPods, but at least how many
// pods are attached.
func TestMostPods(t *testing.T) {
	for _, c := range []struct {
		cidrs    string
		attached int
		want     int
	}{{"10.0.0.0/16", 0, usualPods}, {"10.0.0.0/28", 0, 16}, {"fd00::/64", 0, usualPods}, {"10.0.0.0/28", 20, 20}, {"fd00::/125 10.0.0.0/30", 0, 8}, {"", 0, 0}} {
		var p ipam.PoolConfig
		for _, cidr := range strings.Fields(c.cidrs) {
			p.CIDRs = append(p.CIDRs, netip.MustParsePrefix(cidr))
		}
		n := &Node{
			agent:  func() agent { return agent{status: api.Status{Attachments: map[string]int{"attached": c.attached}}} },
			config: func() config.Reading { return config.Reading{Config: &config.Config{Pools: []ipam.PoolConfig{p}}} },
		}
		if have := n.mostPods(); have != c.want {
			t.Errorf("%s, %d attached: %d, want %d", c.cidrs, c.attached, have, c.want)
		}
	}
}

// spares knows the lists of devices by which NetworkManager leaves pods' links alone.
func TestSpares(t *testing.T) {
	for list, want := range map[string]bool{
		"interface-name:b*": true, "interface-name:babcd*": true, "interface-name:bxyz2*": false, "interface-name:cali*": false, "interface-name:b": false,
		"mac:00:11:22:33:44:55;driver:veth": true, "type:veth": true, "*": true, "interface-name:*": true, "": false, "interface-name:=b*": false,
	} {
		if have := spares(list, "abcdefghij"); have != want {
			t.Errorf("%q: %t", list, have)
		}
	}
}

// The capabilities are those that the unit gives the agent.
func TestUnit(t *testing.T) {
	unit, err := os.ReadFile("../../deploy/berthd.service")
	nettest.Must(t, err)
	want := "CapabilityBoundingSet="
	for i, c := range needed {
		if i > 0 {
			want += " "
		}
		want += c.name
	}
	if !strings.Contains(string(unit), "\n"+want+"\n") {
		t.Errorf("the unit has no line %q", want)
	}
}
