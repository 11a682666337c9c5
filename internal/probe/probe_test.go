package probe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/echo"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

// place is a pod of the test, with its open namespace.
type place struct {
	*ns.Netns
	Pod
}

// world is a node with two pods and a gateway that knows the way back.
type world struct {
	node, gateway *ns.Netns
	pod, peer     place
}

// ip runs commands of ip in a namespace.
func ip(t *testing.T, at *ns.Netns, commands ...string) {
	t.Helper()
	cmd := nettest.Command(at, nettest.Program(t, "ip"), "-batch", "-")
	cmd.Stdin = strings.NewReader(strings.Join(commands, "\n"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("ip: %v\n%s%s", err, out, strings.Join(commands, "\n"))
	}
}

// wire returns ip's commands that make a link between the node and another namespace. The link's end in
// the node is up, and has the MAC mac(n).
func wire(host string, n int, at *ns.Netns, inside string) []string {
	return []string{
		fmt.Sprintf("link add %s address %s type veth peer name %s netns %s", host, mac(n), inside, at.Ref().Path),
		"link set " + host + " up",
	}
}

func mac(n int) string { return fmt.Sprintf("02:00:00:00:00:%02d", n) }

// newPod makes a pod as Berth attaches one, and returns ip's commands that the node has to run for the
// pod.
func newPod(t *testing.T, n int) (place, []string) {
	t.Helper()
	p := place{Netns: nettest.Pod(t)}
	p.Pod = Pod{Name: fmt.Sprintf("default/p%d", n), Netns: p.Ref().Path, Ifname: "eth0", Host: fmt.Sprintf("host%d", n),
		Addresses: []netip.Addr{netip.MustParseAddr(fmt.Sprintf("10.88.0.%d", n)), netip.MustParseAddr(fmt.Sprintf("fd00:88::%d", n))}}
	return p, append(wire(p.Host, n, p.Netns, p.Ifname),
		fmt.Sprintf("addr add fe80::1/64 dev %s nodad", p.Host),
		fmt.Sprintf("route add %s dev %s", p.Addresses[0], p.Host), fmt.Sprintf("route add %s dev %s", p.Addresses[1], p.Host))
}

// furnish does what is to be done inside a pod.
func (p place) furnish(t *testing.T, n int) {
	t.Helper()
	ip(t, p.Netns, "link set lo up", "link set eth0 up",
		fmt.Sprintf("addr add %s/32 dev eth0", p.Addresses[0]), fmt.Sprintf("addr add %s/128 dev eth0 nodad", p.Addresses[1]),
		"neigh add 169.254.1.1 lladdr "+mac(n)+" dev eth0 nud permanent", "neigh add fe80::1 lladdr "+mac(n)+" dev eth0 nud permanent",
		"route add default via 169.254.1.1 dev eth0 onlink", "route add default via fe80::1 dev eth0 onlink")
}

const gatewayAddr = "192.0.2.254"

func newWorld(t *testing.T) *world {
	t.Helper()
	nettest.Need(t)
	w := &world{node: nettest.Node(t), gateway: nettest.Node(t)}
	for _, at := range []*ns.Netns{w.node, w.gateway} {
		for name, value := range map[string]string{
			"ipv4/ip_forward": "1", "ipv6/conf/all/forwarding": "1", "ipv6/conf/default/accept_dad": "0",
			"ipv4/conf/all/rp_filter": "0", "ipv4/conf/default/rp_filter": "0",
		} {
			nettest.Sysctl(t, at, name, value)
		}
	}
	commands := append(wire("up0", 1, w.gateway, "gw0"), "addr add 192.0.2.1/24 dev up0", "addr add 2001:db8::1/64 dev up0 nodad",
		"route add default via "+gatewayAddr, "route add default via 2001:db8::fe")
	for n, p := range map[int]*place{2: &w.pod, 3: &w.peer} {
		made, more := newPod(t, n)
		*p = made
		commands = append(commands, more...)
	}
	ip(t, w.node, commands...)
	w.pod.furnish(t, 2)
	w.peer.furnish(t, 3)
	ip(t, w.gateway, "link set gw0 up", "addr add "+gatewayAddr+"/24 dev gw0", "addr add 2001:db8::fe/64 dev gw0 nodad",
		"route add 10.88.0.0/24 via 192.0.2.1", "route add fd00:88::/64 via 2001:db8::1")
	// A link can send only a while after its peer is up.
	for _, a := range append(slices.Concat(w.pod.Addresses, w.peer.Addresses), netip.MustParseAddr(gatewayAddr), netip.MustParseAddr("2001:db8::fe")) {
		nettest.Ping(t, w.node, a)
	}
	return w
}

// probe probes the pod by one of its addresses, or by all.
func (w *world) probe(t *testing.T, change func(*Options)) []Step {
	t.Helper()
	o := Options{Pod: w.pod.Pod, Peer: &w.peer.Pod, Wait: 100 * time.Millisecond}
	if change != nil {
		change(&o)
	}
	var steps []Step
	nettest.Must(t, w.node.Do(func() (err error) { steps, err = Run(t.Context(), o); return err }))
	return steps
}

func v4(o *Options) { o.Pod.Addresses = o.Pod.Addresses[:1] }
func v6(o *Options) { o.Pod.Addresses = o.Pod.Addresses[1:] }

// patient makes the probe wait longer, for a step whose words depend on an answer.
func patient(how func(*Options)) func(*Options) {
	return func(o *Options) { how(o); o.Wait = time.Second }
}

// to has the way out lead to a target.
func to(target string) func(*Options) {
	return func(o *Options) { v4(o); o.To = netip.MustParseAddrPort(target) }
}

func say(steps []Step) string {
	var b strings.Builder
	for _, s := range steps {
		fmt.Fprintf(&b, "\n%s  %s  %s  %s; %s", s.Verdict, s.Name, s.Sent, s.Got, strings.Join(s.Why, "; "))
	}
	return b.String()
}

// On a sound node each step is answered, in both families, and nothing is left behind.
func TestSound(t *testing.T) {
	w := newWorld(t)
	look := func() string {
		return nettest.Snapshot(t, w.node).Only("nft").String() + nettest.Snapshot(t, w.pod.Netns).Deliberate().String()
	}
	before := look()
	steps := w.probe(t, func(o *Options) { o.Wait = nettest.Deadline })
	var names []string
	for _, s := range steps {
		names = append(names, s.Name)
		if s.Verdict != OK || s.Seconds <= 0 {
			t.Errorf("%+v", s)
		}
	}
	one := []string{"node to pod", "pod to itself", "pod to node", "pod to pod default/p3", "pod out"}
	if !slices.Equal(names, slices.Concat(one, one)) {
		t.Errorf("the steps are %q", names)
	}
	if after := look(); after != before {
		t.Errorf("it leaves something behind: before\n%s\nafter\n%s", before, after)
	}
}

// fault is a change that breaks a path, with the words that the step on that path has to say.
type fault struct {
	name    string
	plant   func(t *testing.T, w *world)
	how     func(*Options)
	step    string
	verdict Verdict
	says    string
}

// fw loads a table of somebody else into the node, with these chains.
func fw(chains string) func(*testing.T, *world) {
	return func(t *testing.T, w *world) { load(t, w.node, chains) }
}

// podRule loads a chain into the pod.
func podRule(chain string) func(*testing.T, *world) {
	return func(t *testing.T, w *world) { load(t, w.pod.Netns, "chain own { type filter "+chain+" }") }
}

// masquerade hides the pods behind the node's address, as Berth's table does.
func masquerade(t *testing.T, w *world) {
	fw("chain post { type nat hook postrouting priority srcnat; oifname up0 masquerade fully-random; }")(t, w)
}

func load(t *testing.T, at *ns.Netns, chains string) {
	t.Helper()
	cmd := nettest.Command(at, nettest.Program(t, "nft"), "-f", "-")
	cmd.Stdin = strings.NewReader("table inet fw { " + chains + " ; }")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("nft: %v\n%s", err, out)
	}
}

// sysctl sets a sysctl of the node.
func sysctl(name, value string) func(*testing.T, *world) {
	return func(t *testing.T, w *world) { nettest.Sysctl(t, w.node, name, value) }
}

// inPod runs commands of ip in the pod, and inGateway in the gateway.
func inPod(commands ...string) func(*testing.T, *world) {
	return func(t *testing.T, w *world) { ip(t, w.pod.Netns, commands...) }
}

func inGateway(commands ...string) func(*testing.T, *world) {
	return func(t *testing.T, w *world) { ip(t, w.gateway, commands...) }
}

const forwardDrops = "chain FORWARD { type filter hook forward priority 10; policy drop; }"

// onlyLinkLocal leaves the node no IPv6 address but link-local ones, and onlyLoopback none but ::1.
func onlyLinkLocal(t *testing.T, w *world) { ip(t, w.node, "addr del 2001:db8::1/64 dev up0") }

func onlyLoopback(t *testing.T, w *world) {
	onlyLinkLocal(t, w)
	ip(t, w.node, "link set lo up", "addr flush dev up0 scope link", "addr flush dev host2 scope link", "addr flush dev host3 scope link")
}

const noIPv6 = "the node has no IPv6 address that pods can reach"

var faults = []fault{
	{"a forward chain's policy", fw(forwardDrops), v4, "pod out", Fail,
		"the packet was dropped by the policy of chain inet fw FORWARD { type filter hook forward priority 10; policy drop; }"},
	{"a forward chain's policy, IPv6", fw(forwardDrops), v6, "pod to pod", Fail, "the policy of chain inet fw FORWARD {"},
	{"a rule", fw("chain FORWARD { type filter hook forward priority 0; ip saddr 10.88.0.0/24 oifname up0 counter drop; }"), v4, "pod out", Fail,
		"nft -a list chain inet fw FORWARD) of chain inet fw FORWARD { type filter hook forward priority 0; policy accept; }"},
	{"a rule in another chain", fw("chain deep { reject; } ; chain FORWARD { type filter hook forward priority 0; oifname up0 jump deep; }"), v4, "pod out", Fail,
		"of chain inet fw deep"},
	{"a rule about answers", fw("chain pre { type filter hook prerouting priority -300; ip saddr " + gatewayAddr + " drop; }"), v4, "pod out", Fail,
		"the answer was dropped by rule"},
	{"a rule of the node's own traffic", fw("chain out { type filter hook output priority 0; ip daddr 10.88.0.2 drop; }"), v4, "node to pod", Fail,
		"of chain inet fw out { type filter hook output"},
	{"input", fw("chain in { type filter hook input priority 0; iifname host2 drop; }"), v4, "pod to node", Fail, "of chain inet fw in {"},
	{"iptables", func(t *testing.T, w *world) { nettest.Run(t, w.node, "iptables-nft -A FORWARD -j REJECT") }, v4, "pod out", Fail,
		"of chain ip filter FORWARD { type filter hook forward priority 0; policy accept; }"},
	{"legacy iptables", func(t *testing.T, w *world) { nettest.Run(t, w.node, "iptables-legacy -P FORWARD DROP") }, v4, "pod out", Fail,
		"the packet got lost in forward, and no nftables rule dropped it: legacy iptables may have"},
	{"a rule of the pod's own", podRule("hook output priority 0; ip daddr 192.0.2.0/24 drop;"), v4, "pod out", Unknown, "a rule of the pod's own"},
	{"a rule of the pod's own about echos", podRule("hook input priority 0; icmp type echo-request drop;"), v4, "node to pod", Unknown,
		"by host2, and the pod does not answer"},
	{"a rule of the pod's own about answers", podRule("hook input priority 0; icmp type echo-reply ip saddr 192.0.2.254 drop;"), v4, "pod out", Unknown,
		"the answer has passed all of the node's rules, and the pod does not take it in"},
	{"ip_forward", sysctl("ipv4/ip_forward", "0"), v4, "pod out", Fail,
		"the packet got lost between prerouting and forward: the node does not route it; net.ipv4.ip_forward = 0"},
	{"forwarding, IPv6", sysctl("ipv6/conf/all/forwarding", "0"), v6, "pod to pod", Fail, "net.ipv6.conf.all.forwarding = 0"},
	{"forwarding of the pod's link", sysctl("ipv4/conf/host2/forwarding", "0"), v4, "pod to pod", Fail,
		"the node does not route it; net.ipv4.conf.host2.forwarding = 0"},
	{"forwarding of the uplink", sysctl("ipv4/conf/up0/forwarding", "0"), v4, "pod out", Fail,
		"the answer got lost between prerouting and forward: the node does not route it; net.ipv4.conf.up0.forwarding = 0"},
	{"the pod's route", inPod("route del default"), v4, "pod out", Fail, "the pod has no route to " + gatewayAddr},
	{"the pod's link", inPod("link set eth0 down"), v4, "node to pod", Fail, "the pod's eth0 is down"},
	{"the pod's address", inPod("addr del 10.88.0.2/32 dev eth0"), v4, "node to pod", Fail, "the pod's eth0 lacks the address 10.88.0.2"},
	{"another interface in the place of the pod's", inPod("link set eth0 down", "link set eth0 name real", "link set real up",
		"link add eth0 type veth peer name back", "link set eth0 up", "link set back up", "addr add 10.88.0.2/32 dev eth0",
		"neigh add 169.254.1.1 lladdr "+mac(2)+" dev eth0 nud permanent", "route add default via 169.254.1.1 dev eth0 onlink"),
		v4, "pod out", Fail, "the pod's eth0 is not the other end of host2"},
	{"the pod's lo", inPod("link set lo down"), v4, "pod to itself", Fail, "the pod's lo is down"},
	{"rp_filter", func(t *testing.T, w *world) { // answers come by another link than the node would use
		ip(t, w.node, append(wire("up1", 4, w.gateway, "gw1"), "addr add 203.0.113.1/24 dev up1")...)
		ip(t, w.gateway, "link set gw1 up", "addr add 203.0.113.254/24 dev gw1", "neigh add 203.0.113.1 lladdr "+mac(4)+" dev gw1",
			"route replace 10.88.0.0/24 via 203.0.113.1")
		nettest.Sysctl(t, w.node, "ipv4/conf/up1/rp_filter", "1")
	}, v4, "pod out", Fail, "rp_filter of up1 is 1, and the node's way to " + gatewayAddr + " is by up0"},
	{"the gateway's neighbour", func(t *testing.T, w *world) {
		ip(t, w.gateway, "link set gw0 arp off")
		ip(t, w.node, "neigh flush dev up0")
	}, v4, "pod out", Fail, "neighbour " + gatewayAddr + " dev up0 is INCOMPLETE"},
	{"the uplink", inGateway("link set gw0 down"), v4, "pod out", Fail, "the node's up0 has no carrier"},
	{"no way back", inGateway("route del 10.88.0.0/24"), patient(v4), "pod out", Fail,
		gatewayAddr + " answers the node, but not the pod: is masquerade off for this address"},
	{"a gateway that is silent", func(t *testing.T, w *world) { nettest.Sysctl(t, w.gateway, "ipv4/icmp_echo_ignore_all", "1") }, v4, "pod out", Unknown,
		gatewayAddr + " does not answer the node, either"},
	{"a gateway that is silent, behind masquerade", func(t *testing.T, w *world) {
		masquerade(t, w)
		nettest.Sysctl(t, w.gateway, "ipv4/icmp_echo_ignore_all", "1")
	}, v4, "pod out", Unknown, gatewayAddr + " does not answer the node, either"},
	{"a rule about answers to masquerade", func(t *testing.T, w *world) {
		masquerade(t, w)
		fw("chain pre { type filter hook prerouting priority -300; ip saddr "+gatewayAddr+" drop; }")(t, w)
	}, v4, "pod out", Fail, "the answer was dropped by rule"},
	{"a pod that is silent", func(t *testing.T, w *world) { nettest.Sysctl(t, w.pod.Netns, "ipv4/icmp_echo_ignore_all", "1") }, v4, "node to pod", Unknown,
		"the pod does not answer"},
	{"a node that is silent", sysctl("ipv4/icmp_echo_ignore_all", "1"), v4, "pod to node", Fail, "net.ipv4.icmp_echo_ignore_all = 1"},
	{"no route", func(t *testing.T, w *world) { ip(t, w.node, "route del default") }, to("198.51.100.9:0"), "pod out", Fail, "ip route get 198.51.100.9"},
	{"no default route", func(t *testing.T, w *world) { ip(t, w.node, "route del default via 2001:db8::fe") }, v6, "pod out", Skipped, "the node has no default route of IPv6"},
	{"no IPv6 but link-local", onlyLinkLocal, v6, "pod to node", Skipped, noIPv6},
	{"no IPv6 but link-local, to the pod", onlyLinkLocal, v6, "node to pod", Skipped, noIPv6},
	{"no IPv6 but loopback", onlyLoopback, v6, "pod to node", Skipped, noIPv6},
	{"no IPv6 but loopback, to the pod", onlyLoopback, v6, "node to pod", Skipped, noIPv6},
	{"a closed TCP port answers", func(*testing.T, *world) {}, patient(to(gatewayAddr + ":81")), "pod out", OK, "refused (reset) in"},
	{"a rule about TCP", fw("chain FORWARD { type filter hook forward priority 0; tcp dport 81 drop; }"), to(gatewayAddr + ":81"), "pod out", Fail,
		"the packet was dropped by rule"},
	{"a rule about TCP's answers", fw("chain FORWARD { type filter hook forward priority 0; tcp sport 81 drop; }"), to(gatewayAddr + ":81"), "pod out", Fail,
		"the answer was dropped by rule"},
}

// The step that a fault breaks names the fault.
func TestFaults(t *testing.T) {
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			f.plant(t, w)
			steps := w.probe(t, f.how)
			i := slices.IndexFunc(steps, func(s Step) bool { return strings.HasPrefix(s.Name, f.step) })
			if i < 0 || steps[i].Verdict != f.verdict || !strings.Contains(steps[i].Got+"; "+strings.Join(steps[i].Why, "; "), f.says) {
				t.Errorf("want %s of %q: %s; got%s", f.verdict, f.step, f.says, say(steps))
			}
		})
	}
}

// If the kernel cannot tell of packets, a step names the settings that are wrong.
func TestBlind(t *testing.T) {
	w := newWorld(t)
	nettest.Sysctl(t, w.node, "ipv4/conf/up0/forwarding", "0")
	nettest.Sysctl(t, w.pod.Netns, "ipv4/icmp_echo_ignore_all", "1")
	p := &prober{Options: Options{Pod: w.pod.Pod, Wait: 100 * time.Millisecond}}
	nettest.Must(t, w.node.Do(func() error {
		defer p.close()
		if err := p.open(t.Context()); err != nil {
			return err
		}
		p.trail.Close()
		p.trail, p.blind = nil, errors.New("too old")
		p.probe(t.Context(), w.pod.Addresses[0])
		return nil
	}))
	for name, want := range map[string]string{
		"node to pod": "unknown: nothing tells where the packet got lost (too old)", "pod out": "fail: net.ipv4.conf.up0.forwarding = 0",
	} {
		i := slices.IndexFunc(p.steps, func(s Step) bool { return s.Name == name })
		if got := fmt.Sprintf("%s: %s", p.steps[i].Verdict, strings.Join(p.steps[i].Why, "; ")); !strings.HasPrefix(got, want) {
			t.Errorf("want %q of %s, got%s", want, name, say(p.steps))
		}
	}
}

// A pod that fills the probe's socket with replies of its own does not hold the probe.
func TestFlood(t *testing.T) {
	w := newWorld(t)
	nettest.Sysctl(t, w.pod.Netns, "ipv4/icmp_echo_ignore_all", "1")
	own := w.pod.Addresses[0]
	fd := -1
	nettest.Must(t, w.pod.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMP)
		return err
	}))
	t.Cleanup(func() { unix.Close(fd) })
	reply := make([]byte, 24)
	binary.BigEndian.PutUint16(reply[2:], echo.Checksum(reply))
	nettest.Meanwhile(t, func() { _ = unix.Sendto(fd, reply, 0, &unix.SockaddrInet4{Addr: own.As4()}) })
	for _, s := range w.probe(t, v4) {
		if s.Name == "pod to itself" && (s.Verdict != Unknown || s.Seconds < 0.1 || s.Seconds > nettest.Deadline.Seconds()) {
			t.Errorf("%+v", s)
		}
	}
}

// A namespace that is not the pod's is not probed.
func TestRefuses(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct {
		change func(*Options)
		want   string
	}{
		{func(o *Options) { o.Pod.Netns = "/run/netns/nowhere" }, "gone"},
		{func(o *Options) { o.Pod.Netns = "/proc/thread-self/ns/net" }, "the node's own network namespace"},
	} {
		o := Options{Pod: w.pod.Pod, Wait: time.Second}
		c.change(&o)
		err := w.node.Do(func() error { _, err := Run(t.Context(), o); return err })
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v; want %s", err, c.want)
		}
	}
}
