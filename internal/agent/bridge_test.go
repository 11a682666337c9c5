package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/rebuild"
	"github.com/berth-net/berth/internal/stamp"
)

// onBridge are the keys of a network of mode bridge.
var onBridge = []string{`"mode":"bridge"`, `"bridge":"br0"`, `"pool":"lan"`}

func bridgeRequest(container string, pod *ns.Netns, keys ...string) api.AddRequest {
	return request(container, pod, append(slices.Clone(onBridge), keys...)...)
}

// startBridged starts an agent on a node whose bridge br0 leads to a segment.
func startBridged(t *testing.T, first ...string) *segmented {
	t.Helper()
	nettest.Need(t)
	t.Cleanup(func() { nettest.Run(t, nil, "ip link del br0") }) // behind the look for residue
	return startSegmented(t, segmentFile, append([]string{
		"ip link add br0 type bridge mcast_snooping 0", // else the bridge tells the network of itself (RFC 4286), and the node remembers that
		"ip link set br0 addrgenmode none", "ip link set uplink master br0", "ip link set br0 up", "ip link show br0", "ip link show uplink",
	}, first...)...)
}

// Two pods and a machine of the segment reach each other, in both families. The result has what the reference plugins' have. Nothing is left.
func TestBridgePods(t *testing.T) {
	s := startBridged(t)
	empty := nettest.Snapshot(t, nil).Only("link", "address", "route").String()
	a, b := nettest.Pod(t), nettest.Pod(t)
	s.add(bridgeRequest("a", a))
	res := s.add(bridgeRequest("b", b))
	for _, to := range append(addresses(res), lan4, lan6) {
		nettest.Ping(t, a, to)
	}
	nettest.Ping(t, s.lan, addresses(res)[0])
	if len(res.Interfaces) != 2 || !stamp.IsPort(res.Interfaces[0].Name) || res.Interfaces[0].Sandbox != "" ||
		res.Interfaces[1].Name != "eth0" || res.Interfaces[1].Sandbox != b.Ref().Path || res.Interfaces[1].Mac == "" {
		t.Errorf("interfaces %+v", res.Interfaces)
	}
	var told []string
	for _, ip := range res.IPs {
		told = append(told, fmt.Sprint(ip.Address.String(), " via ", ip.Gateway, " on ", *ip.Interface))
	}
	for _, r := range res.Routes {
		told = append(told, fmt.Sprint(r.Dst.String(), " via ", r.GW))
	}
	want := []string{"192.0.2.66/24 via 192.0.2.254 on 1", "2001:db8::42/64 via <nil> on 1", "0.0.0.0/0 via 192.0.2.254"}
	if !slices.Equal(told, want) {
		t.Errorf("the result says %q, want %q", told, want)
	}
	s.wantClean()
	s.del("a", false)
	nettest.NoPing(t, a, lan4)
	s.del("a", true)
	s.del("b", true)
	s.wantClean()
	if now := nettest.Snapshot(t, nil).Only("link", "address", "route").String(); now != empty {
		t.Errorf("after its pods the node has\n%s\nand before them\n%s", now, empty)
	}
}

// A repeated ADD leaves the port alone, but for when the ADD began. One for another network namespace replaces it.
func TestBridgeRepeatedAdd(t *testing.T) {
	s := startBridged(t)
	pod, other := nettest.Pod(t), nettest.Pod(t)
	first := s.add(bridgeRequest("c", pod))
	began := func() int64 {
		l, err := s.node.Conn.Link(first.Interfaces[0].Name)
		must(t, err)
		of, ok := stamp.ParsePort(l.Alias)
		if !ok {
			t.Errorf("the port's alias is %q", l.Alias)
		}
		return of.Start
	}
	was, at := nettest.Snapshot(t, pod).Only("link").String(), began()
	if again := s.add(bridgeRequest("c", pod)); told(again) != told(first) {
		t.Errorf("again it answers %v, and at first %v", again, first)
	}
	if now := nettest.Snapshot(t, pod).Only("link").String(); now != was || began() <= at {
		t.Errorf("again the pod has\n%s\nand had\n%s; its ADD began at %d, and before at %d", now, was, began(), at)
	}
	s.wantClean()
	if moved := s.add(bridgeRequest("c", other)); addresses(moved)[0] == addresses(first)[0] {
		t.Errorf("in another namespace it has the same address")
	}
	nettest.Eventually(t, "the old incarnation is gone", func() bool { return len(s.index.All()) == 1 })
	s.wantClean()
}

// CHECK names what somebody has changed, in the pod and on the node.
func TestBridgeCheck(t *testing.T) {
	for _, c := range []struct{ name, inPod, onNode, says string }{
		{name: "well"},
		{name: "address", inPod: "ip addr del 192.0.2.65/24 dev eth0", says: "192.0.2.65"},
		{name: "route", inPod: "ip route del default", says: "0.0.0.0/0"},
		{name: "MAC", inPod: "ip link set eth0 address 02:00:00:00:00:77", says: "mac"},
		{name: "down", inPod: "ip link set eth0 down", says: "down"},
		{name: "gone", inPod: "ip link del eth0", says: "gone"},
		{name: "off the bridge", onNode: "ip link set PORT nomaster", says: "no port of bridge br0"},
		{name: "unlocked", onNode: "bridge link set dev PORT locked off", says: "Locked:false"},
	} {
		t.Run(c.name, func(t *testing.T) {
			nettest.Program(t, "bridge")
			s := startBridged(t)
			pod := nettest.Pod(t)
			raw, err := s.Add(t.Context(), bridgeRequest("c", pod), now())
			must(t, err)
			if c.inPod != "" {
				nettest.Run(t, pod, c.inPod)
			}
			if c.onNode != "" {
				s.onNode(strings.ReplaceAll(c.onNode, "PORT", s.List(api.Filter{})[0].HostVeth))
			}
			err = s.Check(t.Context(), bridgeRequest("c", pod, `"prevResult":`+string(raw)), now())
			if c.says == "" {
				must(t, err)
			} else {
				wantError(t, err, 103, c.says)
			}
		})
	}
}

// A restart keeps pods, takes again what is missing, repairs ports, and releases what is gone.
func TestBridgeRestart(t *testing.T) {
	s := startBridged(t)
	a, b, c, d := nettest.Pod(t), nettest.Pod(t), nettest.Pod(t), nettest.Pod(t)
	res := s.add(bridgeRequest("a", a))
	s.add(bridgeRequest("b", b))
	s.add(bridgeRequest("c", c))
	off := s.add(bridgeRequest("d", d))
	nettest.Run(t, a, "ip link del eth0")
	nettest.Delete(t, b)
	s.onNode("ip link set " + off.Interfaces[0].Name + " nomaster")
	s.restart()
	nettest.Eventually(t, "the pod that is gone is released", func() bool { return len(s.index.All()) == 3 })
	nettest.Ping(t, c, addresses(res)[0])
	nettest.Ping(t, c, addresses(off)[0])
	s.wantClean()
}

// A DEL while the agent is away waits in the queue. The agent does it when it is back.
func TestBridgeAgentAway(t *testing.T) {
	s := startBridged(t)
	pod := nettest.Pod(t)
	res := s.add(bridgeRequest("c", pod))
	d := s.deletion("c", res.Interfaces[0].Name)
	s.close()
	s.enqueue(d)
	s.bringUp()
	nettest.Eventually(t, "the pod is released", func() bool { return len(s.index.All()) == 0 })
	if there, err := pod.HasLink("eth0"); err != nil || there {
		t.Errorf("the pair is left: %t, %v", there, err)
	}
}

// What a port of a bridge cannot have is refused, with what is wrong by its name.
func TestBridgeRefused(t *testing.T) {
	s := startBridged(t)
	s.add(request("routed", nettest.Pod(t)))
	veth := s.List(api.Filter{})[0].HostVeth
	port := s.add(bridgeRequest("first", nettest.Pod(t))).Interfaces[0].Name
	on := func(bridge string) []string {
		return []string{`"mode":"bridge"`, `"pool":"lan"`, fmt.Sprintf(`"bridge":%q`, bridge)}
	}
	with := func(keys ...string) []string { return append(slices.Clone(onBridge), keys...) }
	for _, c := range []struct {
		keys []string
		code uint
		says string
	}{
		{[]string{`"mode":"bridge"`, `"bridge":"br0"`}, 7, "pool default has no segment, and mode bridge needs one that has a segment: these are lan"},
		{[]string{`"mode":"bridge"`, `"pool":"lan"`}, 7, "bridge is missing"},
		{on("nosuch"), 11, `"nosuch"`},
		{on("uplink"), 7, `bridge is "uplink", and that link of the node is no bridge`},
		{on(veth), 7, "Berth's own"},
		{on(port), 7, "Berth's own"},
		{with(`"mtu":1000`), 7, "1280"},
		{with(`"mtu":9000`), 7, "mtu is 9000; bridge br0 has 1500"},
		{with(`"runtimeConfig":{"portMappings":[{"hostPort":80,"containerPort":80,"protocol":"tcp"}]}`), 7, "no host ports"},
		{with(`"runtimeConfig":{"bandwidth":{"ingressRate":1000000,"ingressBurst":1000000}}`), 7, "no limits"},
	} {
		_, err := s.tryAdd(request("c", nettest.Pod(t), c.keys...))
		wantError(t, err, c.code, c.says)
	}
	if used := s.ground.Figures(); used[1].CIDRs[0].Used != 1 || used[1].CIDRs[0].Resting > 0 {
		t.Errorf("refused pods have taken addresses: %+v", used[1])
	}
}

// Two pods that ask for one MAC on one bridge: the second is refused, and takes nothing from the first.
func TestBridgeMACTaken(t *testing.T) {
	s := startBridged(t)
	wish := `"runtimeConfig":{"mac":"02:11:22:33:44:55"}`
	a := nettest.Pod(t)
	s.add(bridgeRequest("a", a, wish))
	if _, err := s.tryAdd(bridgeRequest("b", nettest.Pod(t), wish)); err == nil || !strings.Contains(err.Error(), "02:11:22:33:44:55") {
		t.Errorf("the second says %v", err)
	}
	nettest.Ping(t, a, lan4)
	s.wantClean()
}

// A pod of mode bridge is no pod of mode routed: what others do to its port is mended as a port, also beside routed pods.
func TestBridgeBesideRouted(t *testing.T) {
	s := startBridged(t)
	a, b := nettest.Pod(t), nettest.Pod(t)
	res := s.add(bridgeRequest("a", a))
	s.add(request("b", b))
	port := res.Interfaces[0].Name
	s.onNode("ip link set " + port + " down")
	s.onNode("ip link set " + port + " nomaster")
	for range 2 {
		_, err := s.core.Engine.Sweep(t.Context())
		must(t, err)
	}
	nettest.Eventually(t, "the port is back", func() bool {
		l, err := s.node.Conn.Link(port)
		return err == nil && l.Up && l.Master != 0
	})
	nettest.Ping(t, a, lan4)
	if routes := nettest.Snapshot(t, nil).Only("route").String(); strings.Contains(routes, "unicast 192.0.2.") {
		t.Errorf("the node has\n%s", routes)
	}
	s.wantClean()
}

// A ledger that is made anew has the pods as pods of mode bridge, with the addresses that the ports' aliases say, so that no other pod gets them.
func TestBridgeRebuilt(t *testing.T) {
	nettest.Program(t, "ip") // a skip has to come here: no agent could clean up once its ledger is lost
	s := startBridged(t)
	a, b, routed := nettest.Pod(t), nettest.Pod(t), nettest.Pod(t)
	res := s.add(bridgeRequest("a", a, `"runtimeConfig":{"mac":"02:11:22:33:44:55"}`, `"isolated":true`))
	s.add(bridgeRequest("b", b))
	was := s.add(request("routed", routed))
	nettest.Run(t, b, "ip addr add 192.0.2.65/24 dev eth0") // the address of a
	nettest.Run(t, a, "ip link set eth0 address 02:00:00:00:00:77")
	s.lose(false)
	built, err := s.rebuild()
	must(t, err)
	if len(built.Pods) != 3 {
		t.Fatalf("found are %+v", built.Pods)
	}
	must(t, s.open())
	must(t, s.Restore(t.Context()))
	nettest.Run(t, a, "ip link set eth0 address 02:11:22:33:44:55")
	nettest.Run(t, a, "ip route replace default via 192.0.2.254")
	s.wantClean()
	for _, e := range s.index.All() {
		if want := map[string]string{"a": "bridge", "b": "bridge", "routed": "routed"}[e.Record.ContainerID]; e.Record.Mode != want {
			t.Errorf("%s is of mode %s", e.Record.ContainerID, e.Record.Mode)
		}
	}
	if now := s.add(bridgeRequest("a", a)); told(now) != told(res) || now.Interfaces[1].Mac != res.Interfaces[1].Mac {
		t.Errorf("a has %s with %+v, and had %s with %+v", told(now), now.Interfaces[1], told(res), res.Interfaces[1])
	}
	if now := s.add(request("routed", routed)); told(now) != told(was) {
		t.Errorf("the routed pod has %s, and had %s", told(now), told(was))
	}
	_, err = s.tryAdd(bridgeRequest("c", nettest.Pod(t), `"runtimeConfig":{"ips":["192.0.2.65"]}`))
	wantError(t, err, 101, "192.0.2.65")
	for _, c := range []string{"a", "b"} {
		s.del(c, true)
	}
	for _, pod := range []*ns.Netns{a, b} {
		if there, err := pod.HasLink("eth0"); err != nil || there {
			t.Errorf("a pair is left: %t, %v", there, err)
		}
	}
}

// Freed addresses' next pod has the last one's MAC, and the bridge takes it although it knew the last pod.
func TestBridgeMACStays(t *testing.T) {
	s := startBridged(t)
	wish := `"runtimeConfig":{"ips":["192.0.2.70","2001:db8::46"]}`
	first := s.add(bridgeRequest("a", nettest.Pod(t), wish))
	s.del("a", true)
	pod := nettest.Pod(t)
	if next := s.add(bridgeRequest("b", pod, wish)); next.Interfaces[1].Mac != first.Interfaces[1].Mac {
		t.Errorf("the MAC was %s, and is %s", first.Interfaces[1].Mac, next.Interfaces[1].Mac)
	}
	nettest.Ping(t, s.lan, netip.MustParseAddr("192.0.2.70"))
}

// An agent whose ledger is lost, or an older copy, refuses to start while a pod's port is there, although no link of a routed pod is.
func TestBridgeLedgerLost(t *testing.T) {
	nettest.Program(t, "ip")
	s := startBridged(t)
	s.close()
	old, err := os.ReadFile(s.root.Ledger())
	must(t, err)
	s.bringUp()
	port := s.add(bridgeRequest("a", nettest.Pod(t))).Interfaces[0].Name
	s.close()
	current, err := os.ReadFile(s.root.Ledger())
	must(t, err)
	must(t, os.WriteFile(s.root.Ledger(), old, 0o600))
	if err := s.open(); !errors.Is(err, rebuild.ErrLedgerOld) || !strings.Contains(err.Error(), port) {
		t.Errorf("a start on an older ledger: %v", err)
	}
	must(t, os.Remove(s.root.Ledger()))
	if err := s.open(); !errors.Is(err, rebuild.ErrLedgerLost) || !strings.Contains(err.Error(), port) {
		t.Errorf("a start without a ledger: %v", err)
	}
	must(t, os.WriteFile(s.root.Ledger(), current, 0o600))
	s.bringUp()
	s.del("a", true)
}
