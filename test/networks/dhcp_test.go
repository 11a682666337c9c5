package networks

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// dhcp is the reference plugin dhcp that hangs at a verb while a file how.VERB says so.
const dhcp = `#!/bin/sh
while test -e %[1]s/how.$CNI_COMMAND; do sleep 0.05; done
exec %[2]s/dhcp
`

// leases is a node with the plugin dhcp, its daemon, and a DHCP server on br8's network that has one address: the next pod gets it only when the
// server has heard that the last one has given it back.
type leases struct {
	*node
	lan    *ns.Netns
	daemon *exec.Cmd
	keys   []string
}

const leased = "10.7.0.100"

func newLeases(t testing.TB) *leases { return newLeasesOf(t, "macvlan") }

// newLeasesOf is newLeases for pods of a mode.
func newLeasesOf(t testing.TB, mode string) *leases {
	n := withStatic(t)
	programs.Need(t, "busybox")
	peers := programs.Peers(t, "dhcp")
	must(t, os.WriteFile(filepath.Join(n.plugins, "dhcp"), fmt.Appendf(nil, dhcp, n.disk, peers), 0o700))
	l := &leases{node: n, lan: n.newLAN("10.7.0.1/24", "192.0.2.9/32")}
	l.keys = n.nativeOf(mode, fmt.Sprintf(`"ipam":{"type":"dhcp","daemonSocketPath":%q}`, l.socket()))
	// The plugin (v1.9.1) sends its DHCPRELEASE from 0.0.0.0 to the server's address. A Linux host takes that for a martian, so that a server on a UDP
	// socket does not hear it. Servers on packet sockets do. For this one the frames become broadcasts, as the plugin's other requests are.
	nettest.Run(t, l.lan, "nft add table netdev dhcp")
	nettest.Run(t, l.lan, "nft add chain netdev dhcp in { type filter hook ingress device lan priority 0 ; }")
	nettest.Run(t, l.lan, "nft add rule netdev dhcp in ip saddr 0.0.0.0 udp dport 67 ip daddr set 255.255.255.255")
	l.serve()
	l.startDaemon()
	return l
}

func (l *leases) socket() string { return filepath.Join(l.plugins, "dhcp.sock") }

// serve starts a DHCP server with one address.
func (l *leases) serve() {
	l.t.Helper()
	dir := l.t.TempDir()
	conf := fmt.Sprintf("start %[1]s\nend %[1]s\ninterface lan\nmax_leases 1\npidfile %[2]s/pid\nlease_file %[2]s/leases\noption subnet 255.255.255.0\noption router 10.7.0.1\noption lease 3600\n", leased, dir)
	must(l.t, os.WriteFile(filepath.Join(dir, "conf"), []byte(conf), 0o600), os.WriteFile(filepath.Join(dir, "leases"), nil, 0o600))
	l.run(nettest.Command(l.lan, "busybox", "udhcpd", "-f", filepath.Join(dir, "conf")), "udhcpd")
}

// run runs a program until the test ends.
func (l *leases) run(cmd *exec.Cmd, name string) {
	l.t.Helper()
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	must(l.t, cmd.Start())
	l.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if l.t.Failed() {
			l.t.Logf("%s's last words:\n%s", name, &said)
		}
	})
}

func (l *leases) startDaemon() {
	l.t.Helper()
	l.daemon = exec.Command(filepath.Join(programs.Peers(l.t), "dhcp"), "daemon", "-socketpath", l.socket())
	l.run(l.daemon, "dhcp")
	nettest.Eventually(l.t, "dhcp's socket", func() bool { _, err := os.Stat(l.socket()); return err == nil })
}

// stopDaemon kills dhcp's daemon, which forgets all leases.
func (l *leases) stopDaemon() {
	l.t.Helper()
	must(l.t, l.daemon.Process.Kill())
	_, _ = l.daemon.Process.Wait()
	must(l.t, os.Remove(l.socket()))
}

// next attaches another pod, which has to get the server's only address, and deletes it.
func (l *leases) next(container string) {
	l.t.Helper()
	pod := nettest.Pod(l.t)
	r := l.add(container, pod, l.keys...)
	if got := r.IPs[0].Address.IP.String(); got != leased {
		l.t.Errorf("the next pod has %s", got)
	}
	nettest.Ping(l.t, l.lan, netip.MustParseAddr(leased))
	l.del(container, pod, l.keys)
}

// retry has the agent try what is owed, and waits until nothing is.
func (l *leases) retry() {
	l.t.Helper()
	_, err := l.Berth(l.t.Context(), "owed", "retry")
	must(l.t, err)
	nettest.Eventually(l.t, "the lease to be given back", func() bool {
		owed, err := l.Berth(l.t.Context(), "owed")
		return err == nil && !strings.Contains(owed, "plugin dhcp")
	})
	l.nothingLeft()
}

// A pod gets its address by DHCP: the interface is there before the plugin asks, and has the address, the prefix's length and the default route
// afterwards. CHECK and a repeated ADD find it so. DEL has the plugin tell the server, while the interface is still there and has no address any more.
func TestDHCP(t *testing.T) {
	for mode := range natives {
		t.Run(mode, func(t *testing.T) { testDHCP(t, mode) })
	}
}

func testDHCP(t *testing.T, mode string) {
	l := newLeasesOf(t, mode)
	pod := nettest.Pod(t)
	r := l.add("c1", pod, l.keys...)
	if got, want := said(r), []string{leased + "/24 via 10.7.0.1", "to 0.0.0.0/0 via 10.7.0.1"}; !slices.Equal(got, want) {
		t.Errorf("the result has %q, want %q", got, want)
	}
	wantInPod(t, pod, leased+"/24 dev eth0", "default dev eth0 via 10.7.0.1")
	nettest.Ping(t, pod, netip.MustParseAddr("192.0.2.9"))
	all, err := l.API.List(t.Context(), api.Filter{})
	must(t, err)
	if len(all) != 1 || fmt.Sprint(all[0].Addresses) != "["+leased+"]" || all[0].MAC != r.Interfaces[len(r.Interfaces)-1].Mac {
		t.Errorf("the agent has %+v", all)
	}
	if again := l.add("c1", pod, l.keys...); !reflect.DeepEqual(again, r) {
		t.Errorf("a repeated ADD has %v, and the first one %v", again, r)
	}
	prev, err := json.Marshal(r)
	must(t, err)
	check := append(slices.Clone(l.keys), `"prevResult":`+string(prev))
	_, err = l.Exec("CHECK", "c1", pod.Ref().Path, check...)
	must(t, err)
	nettest.Run(t, pod, "ip addr del "+leased+"/24 dev eth0")
	_, err = l.Exec("CHECK", "c1", pod.Ref().Path, check...)
	programs.WantError(t, err, 103, leased)
	_, err = l.Exec("DEL", "c1", pod.Ref().Path, l.keys...)
	must(t, err)
	nettest.Delete(t, pod) // at once, as runtimes do
	l.nothingLeft()
	l.next("c2")
}

// A plugin that hangs at DEL keeps neither the interface nor the address on it. The lease is owed, and given back later without an interface.
func TestDHCPHangs(t *testing.T) {
	for mode := range natives {
		t.Run(mode, func(t *testing.T) { testDHCPHangs(t, mode) })
	}
}

func testDHCPHangs(t *testing.T, mode string) {
	l := newLeasesOf(t, mode)
	pod := nettest.Pod(t)
	l.add("c1", pod, l.keys...)
	l.tell("DEL", "hang")
	_, err := l.Exec("DEL", "c1", pod.Ref().Path, l.keys...)
	must(t, err)
	nettest.Eventually(t, "the interface to be gone", func() bool { return len(l.links(pod)) == 0 })
	owed, err := l.Berth(t.Context(), "owed")
	if must(t, err); !strings.Contains(owed, "plugin dhcp") {
		t.Errorf("owed is\n%s", owed)
	}
	l.tell("DEL", "")
	l.retry()
}

// While the plugin's DEL is under way the interface has no address, so that nobody who gets the address next meets the pod's packets.
func TestDHCPAddressGoesFirst(t *testing.T) {
	l := newLeases(t)
	pod := nettest.Pod(t)
	l.add("c1", pod, l.keys...)
	l.tell("DEL", "hang")
	done := make(chan error, 1)
	go func() { _, err := l.Exec("DEL", "c1", pod.Ref().Path, l.keys...); done <- err }()
	nettest.Eventually(t, "the address to be off the interface", func() bool {
		return !strings.Contains(nettest.Snapshot(t, pod).Only("address").String(), leased)
	})
	if got := l.links(pod); len(got) != 1 {
		t.Errorf("the pod has %v", got)
	}
	l.tell("DEL", "")
	must(t, <-done)
	l.nothingLeft()
	l.next("c2")
}

// An address that a pod cannot have is given back, and the interface goes.
func TestDHCPRefused(t *testing.T) {
	l := newLeases(t)
	first := nettest.Pod(t)
	l.add("first", first, l.lent(static(leased+"/24"))...)
	_, err := l.Exec("ADD", "c1", nettest.Pod(t).Ref().Path, l.keys...)
	programs.WantError(t, err, 101, leased)
	l.del("first", first, l.lent(static(leased+"/24")))
	l.next("c2")
	_, err = l.Exec("ADD", "c3", nettest.Pod(t).Ref().Path, l.lent(`"ipam":{"type":"dhcp"}`)...)
	programs.WantError(t, err, 7, "mode routed gives it none")
}

// The agent is killed while the plugin asks; the next one completes the attachment, or gives everything back.
func TestDHCPKilledInAdd(t *testing.T) {
	l := newLeases(t)
	for _, again := range []bool{true, false} {
		pod := nettest.Pod(t)
		l.killInAdd(pod, l.keys)
		if again {
			l.add("c1", pod, l.keys...)
			nettest.Ping(t, l.lan, netip.MustParseAddr(leased))
		}
		l.del("c1", pod, l.keys)
	}
	l.next("c2")
}

// A restart gives a pod back what somebody has taken away while no agent ran. A pod is deleted while no agent runs: the next agent has the plugin
// give the lease back. So it is after a reboot, when dhcp's daemon has forgotten the lease.
func TestDHCPAway(t *testing.T) {
	l := newLeases(t)
	pod := nettest.Pod(t)
	l.add("c1", pod, l.keys...)
	l.Crash()
	nettest.Run(t, pod, "ip link del eth0")
	l.Again()
	nettest.Eventually(t, "the address to be back", func() bool {
		return strings.Contains(nettest.Snapshot(t, pod).Only("address").String(), leased)
	})
	nettest.Ping(t, l.lan, netip.MustParseAddr(leased))
	l.del("c1", pod, l.keys)
	l.next("c2")

	pod = nettest.Pod(t)
	l.add("c3", pod, l.keys...)
	l.Crash()
	_, err := l.Exec("DEL", "c3", pod.Ref().Path, l.keys...)
	must(t, err)
	nettest.Delete(t, pod) // the daemon is still in it, and can tell the server
	l.Again()
	l.nothingLeft()
	l.next("c4")

	pod = nettest.Pod(t)
	l.add("c5", pod, l.keys...)
	l.stopDaemon()
	l.rebooted(pod)
	l.Again()
	l.startRunner()
	l.startDaemon()
	l.retry()
}
