package networks

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/test/programs"
)

// natives are the keys of a network of each mode whose pods are hosts of br8's network.
var natives = map[string][]string{
	"macvlan": {`"mode":"macvlan"`, `"master":"br8"`},
	"bridge":  {`"mode":"bridge"`, `"bridge":"br8"`},
}

// native are the keys of a network of mode macvlan on br8 whose addresses an IPAM plugin gives.
func (n *node) native(ipam string, more ...string) []string {
	return n.nativeOf("macvlan", ipam, more...)
}

// nativeOf are the keys of a network of a mode on br8 whose addresses an IPAM plugin gives.
func (n *node) nativeOf(mode, ipam string, more ...string) []string {
	return n.lent(ipam, append(more, natives[mode]...)...)
}

// newLAN makes a machine with these addresses on the network that br8 is of.
func (n *node) newLAN(addresses ...string) *ns.Netns {
	n.t.Helper()
	lan := nettest.Node(n.t)
	nettest.Run(n.t, nil, "ip link add lanport master br8 type veth peer name lan netns "+lan.Ref().Path)
	n.t.Cleanup(func() { nettest.Run(n.t, nil, "ip link del lanport") })
	nettest.Run(n.t, nil, "ip link set lanport up addrgenmode none")
	for _, a := range addresses {
		nettest.Run(n.t, lan, "ip addr add "+a+" dev lan nodad")
	}
	nettest.Run(n.t, lan, "ip link set lan up")
	n.empty = n.state()
	return lan
}

// said are addresses and routes of a result, as ip shows them.
func said(r types100.Result) (all []string) {
	for _, ip := range r.IPs {
		text := ip.Address.String()
		if ip.Gateway != nil {
			text += " via " + ip.Gateway.String()
		}
		all = append(all, text)
	}
	for _, route := range r.Routes {
		text := "to " + route.Dst.String()
		if route.GW != nil {
			text += " via " + route.GW.String()
		}
		all = append(all, text)
	}
	return all
}

// wantInPod looks whether a pod has addresses and routes.
func wantInPod(t testing.TB, pod *ns.Netns, want ...string) {
	t.Helper()
	got := nettest.Snapshot(t, pod).Only("address", "route").String()
	for _, w := range want {
		if !strings.Contains(got, w) {
			t.Errorf("the pod lacks %q, and has\n%s", w, got)
		}
	}
}

// manyRoutes is the ipam of a network with static that has a route by the address's gateway, one by another gateway and one by none.
const manyRoutes = `"ipam":{"type":"static","addresses":[{"address":"10.7.0.2/24","gateway":"10.7.0.1"},{"address":"fd00:7::2/64","gateway":"fd00:7::1"}],` +
	`"routes":[{"dst":"192.0.2.0/24"},{"dst":"198.51.100.0/24","gw":"10.7.0.3"},{"dst":"2001:db8::/32"},{"dst":"::/0"}],"dns":{"nameservers":["10.7.0.53"]}}`

// A network of mode macvlan or bridge takes from an IPAM plugin what the plugin of that name takes: addresses with the lengths of their prefixes, routes, and gateways
// where a route leads by them. CHECK compares that, and asks the plugin. DEL gives the addresses back.
func TestIPAMNative(t *testing.T) {
	for mode := range natives {
		t.Run(mode, func(t *testing.T) { testIPAMNative(t, mode) })
	}
}

func testIPAMNative(t *testing.T, mode string) {
	n := withStatic(t)
	lan := n.newLAN("10.7.0.1/24", "fd00:7::1/64", "10.5.0.1/29", "192.0.2.9/32")
	for _, c := range []struct {
		name, ipam string
		said       []string
		inPod      []string
	}{
		{"static", manyRoutes,
			[]string{"10.7.0.2/24 via 10.7.0.1", "fd00:7::2/64 via fd00:7::1", "to 192.0.2.0/24 via 10.7.0.1", "to 198.51.100.0/24 via 10.7.0.3", "to 2001:db8::/32 via fd00:7::1", "to ::/0 via fd00:7::1"},
			[]string{"10.7.0.2/24", "fd00:7::2/64", "192.0.2.0/24 dev eth0 via 10.7.0.1", "198.51.100.0/24 dev eth0 via 10.7.0.3", "2001:db8::/32 dev eth0 via fd00:7::1"}},
		{"host-local", n.both(),
			[]string{"10.5.0.2/29 via 10.5.0.1", "fd00:5::2/64 via fd00:5::1", "to 192.0.2.0/24 via 10.5.0.1"},
			[]string{"10.5.0.2/29", "fd00:5::2/64", "192.0.2.0/24 dev eth0 via 10.5.0.1"}},
	} {
		pod := nettest.Pod(t)
		keys := n.nativeOf(mode, c.ipam)
		r := n.add("c1", pod, keys...)
		if got := said(r); !slices.Equal(got, c.said) {
			t.Errorf("%s: the result has\n%q, want\n%q", c.name, got, c.said)
		}
		if c.name == "static" && fmt.Sprint(r.DNS.Nameservers) != "[10.7.0.53]" {
			t.Errorf("DNS is %v", r.DNS)
		}
		wantInPod(t, pod, c.inPod...)
		nettest.Ping(t, pod, netip.MustParseAddr("192.0.2.9"))
		nettest.Ping(t, lan, netip.MustParsePrefix(r.IPs[0].Address.String()).Addr())
		if again := n.add("c1", pod, keys...); !reflect.DeepEqual(again, r) {
			t.Errorf("%s: a repeated ADD has %v, and the first one %v", c.name, again, r)
		}
		prev, err := json.Marshal(r)
		must(t, err)
		check := append(slices.Clone(keys), `"prevResult":`+string(prev))
		_, err = n.Exec("CHECK", "c1", pod.Ref().Path, check...)
		must(t, err)
		nettest.Run(t, pod, "ip route del 192.0.2.0/24")
		_, err = n.Exec("CHECK", "c1", pod.Ref().Path, check...)
		programs.WantError(t, err, 103, "no route 192.0.2.0/24")
		n.del("c1", pod, keys)
	}
}

// What no interface can have, or Berth does not do, is refused with the plugin's name and the value, and nothing stays. What no address could change is
// refused before the plugin is executed.
func TestIPAMNativeRefused(t *testing.T) {
	n := withStatic(t)
	n.tell("ADD", "fail")
	one := func(more string) string {
		return `"ipam":{"type":"static","addresses":[{"address":"10.7.0.2/24","gateway":"10.7.0.1"}],` + more + `}`
	}
	for _, c := range []struct {
		keys []string
		code uint
		says string
	}{
		{n.native(one(`"routes":[{"dst":"192.0.2.0/24","gw":"10.8.0.1"}]`)), 7, "IPAM plugin static gives a route to 192.0.2.0/24 by 10.8.0.1, which is on no network of [10.7.0.2/24]"},
		{n.native(one(`"routes":[{"dst":"2001:db8::/32"}]`)), 7, "gives a route to 2001:db8::/32, and no address of its family"},
		{n.native(one(`"routes":[{"dst":"192.0.2.0/24","priority":7}]`)), 7, "expected dst and gw alone"},
		{n.native(static("10.88.0.9/24")), 101, "which is an address of pool default"},
		{n.native(static("fd00:7::2/64"), `"mtu":1000`), 7, "IPAM plugin static has IPv6"},
		{n.native(`"ipam":{"type":"flaky"}`, `"runtimeConfig":{"portMappings":[{"hostPort":80,"containerPort":80}]}`), 7, "no host ports"},
		{n.lent(`"ipam":{"type":"flaky"}`, `"mode":"macvlan"`, `"master":"nosuch"`), 11, `"nosuch"`},
		{n.nativeOf("bridge", one(`"routes":[{"dst":"192.0.2.0/24","gw":"10.8.0.1"}]`)), 7, "IPAM plugin static gives a route to 192.0.2.0/24 by 10.8.0.1, which is on no network of [10.7.0.2/24]"},
		{n.nativeOf("bridge", static("10.88.0.9/24")), 101, "which is an address of pool default"},
		{n.lent(`"ipam":{"type":"flaky"}`, `"mode":"bridge"`, `"bridge":"nosuch"`), 11, `"nosuch"`},
		{n.nativeOf("bridge", `"ipam":{"type":"flaky"}`, `"mtu":9000`), 7, "mtu is 9000; bridge br8 has"},
	} {
		pod := nettest.Pod(t)
		_, err := n.Exec("ADD", "c1", pod.Ref().Path, c.keys...)
		programs.WantError(t, err, c.code, c.says)
		n.nothingLeft()
		if got := n.links(pod); len(got) > 0 {
			t.Errorf("%s: the pod has %v", c.says, got)
		}
	}
}

// Networks of modes macvlan and bridge beside a first one: each has what its plugin gives, and one of them has the pod's default route that it is asked for.
func TestIPAMNativeBeside(t *testing.T) {
	n := withStatic(t)
	lan := n.newLAN("10.7.0.1/24")
	nettest.Run(t, lan, "ip addr add 203.0.113.1/32 dev lan")
	keys := n.keys(
		`{"cniVersion":"1.0.0","name":"one","type":"berth-cni"}`,
		`{"cniVersion":"1.0.0","name":"two","type":"berth-cni","mode":"macvlan","master":"br8",`+n.both()+`}`,
		`{"cniVersion":"1.0.0","name":"three","type":"berth-cni","mode":"macvlan","master":"br8",`+manyRoutes+`}`,
		`{"cniVersion":"1.0.0","name":"four","type":"berth-cni","mode":"bridge","bridge":"br8",`+static("10.7.0.4/24")+`}`,
	)
	pod := nettest.Pod(t)
	n.add("c1", pod, keys...)
	wantInPod(t, pod, "10.5.0.2/29", "10.7.0.2/24", "fd00:7::2/64", "198.51.100.0/24 dev net2 via 10.7.0.3", "10.7.0.4/24 dev net3")
	nettest.Ping(t, lan, netip.MustParseAddr("10.7.0.2"))
	n.del("c1", pod, keys)
}

// An agent is killed while an IPAM plugin works for a macvlan; a pod is deleted while no agent runs; a reboot takes pods, but not the plugin's files; GC
// finds an attachment that the runtime does not know. Nothing is left of either.
func TestIPAMNativeCrashes(t *testing.T) {
	n := withStatic(t)
	keys := n.native(`"ipam":{"type":"flaky"}`)
	for _, how := range []string{"DEL", "GC", "ADD"} {
		pod := nettest.Pod(t)
		n.killInAdd(pod, keys)
		var err error
		switch how {
		case "GC":
			_, err = n.Exec("GC", "", "", append(slices.Clone(keys), `"cni.dev/valid-attachments":[]`)...)
		case "ADD":
			n.add("c1", pod, keys...)
			if got := n.links(pod); len(got) != 1 {
				t.Errorf("after a repeated ADD the pod has %v", got)
			}
			fallthrough
		case "DEL":
			_, err = n.Exec("DEL", "c1", pod.Ref().Path, keys...)
		}
		must(t, err)
		n.nothingLeft()
	}
	keys = n.native(n.both())
	pod := nettest.Pod(t)
	n.add("c2", pod, keys...)
	n.Crash()
	_, err := n.Exec("DEL", "c2", pod.Ref().Path, keys...)
	must(t, err)
	nettest.Delete(t, pod)
	n.Again()
	n.nothingLeft()
	pod = nettest.Pod(t)
	n.add("c3", pod, keys...)
	n.rebooted(pod)
	if got := n.files(); len(got) != 2 {
		t.Errorf("after a reboot host-local has %v", got)
	}
	n.Again()
	n.startRunner()
	_, err = n.Berth(t.Context(), "owed", "retry")
	must(t, err)
	n.nothingLeft()
}

// rebooted ends agent and runner, and a pod, as a reboot does.
func (n *node) rebooted(pod *ns.Netns) {
	n.t.Helper()
	n.Crash()
	n.stopRunner()
	nettest.AnotherBoot(n.t)
	nettest.Delete(n.t, pod)
	must(n.t, os.RemoveAll(root.Dir(n.Root).Run()))
}
