package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/rebuild"
)

// onLAN are the keys of a network of mode macvlan.
var onLAN = []string{`"mode":"macvlan"`, `"master":"uplink"`, `"pool":"lan"`}

func lanRequest(container string, pod *ns.Netns, keys ...string) api.AddRequest {
	return request(container, pod, append(slices.Clone(onLAN), keys...)...)
}

// Two pods and a machine of the segment reach each other, in both families. The results have what the reference plugins' have. Nothing is left.
func TestMacvlanPods(t *testing.T) {
	s := startSegmented(t, segmentFile)
	empty := nettest.Snapshot(t, nil).Only("link", "address", "route").String()
	a, b := nettest.Pod(t), nettest.Pod(t)
	s.add(lanRequest("a", a))
	res := s.add(lanRequest("b", b))
	for _, to := range append(addresses(res), lan4, lan6) {
		nettest.Ping(t, a, to)
	}
	nettest.Ping(t, s.lan, addresses(res)[0])
	if len(res.Interfaces) != 1 || res.Interfaces[0].Name != "eth0" || res.Interfaces[0].Sandbox != b.Ref().Path || res.Interfaces[0].Mac == "" {
		t.Errorf("interfaces %+v", res.Interfaces)
	}
	var told []string
	for _, ip := range res.IPs {
		told = append(told, fmt.Sprint(ip.Address.String(), " via ", ip.Gateway, " on ", *ip.Interface))
	}
	for _, r := range res.Routes {
		told = append(told, fmt.Sprint(r.Dst.String(), " via ", r.GW))
	}
	want := []string{"192.0.2.66/24 via 192.0.2.254 on 0", "2001:db8::42/64 via <nil> on 0", "0.0.0.0/0 via 192.0.2.254"}
	if !slices.Equal(told, want) {
		t.Errorf("the result says %q, want %q", told, want)
	}
	s.wantClean()
	if now := nettest.Snapshot(t, nil).Only("link", "address", "route").String(); now != empty {
		t.Errorf("with its pods the node has\n%s\nand without them\n%s", now, empty)
	}
	s.del("a", false)
	if there, err := a.HasLink("eth0"); err != nil || there {
		t.Errorf("a DEL has left the macvlan: %t, %v", there, err)
	}
	s.del("b", true)
}

// A repeated ADD leaves the macvlan alone. One for another network namespace replaces it.
func TestMacvlanRepeatedAdd(t *testing.T) {
	s := startSegmented(t, segmentFile)
	pod, other := nettest.Pod(t), nettest.Pod(t)
	first := s.add(lanRequest("c", pod))
	was := nettest.Snapshot(t, pod).Only("link").String()
	if again := s.add(lanRequest("c", pod)); told(again) != told(first) {
		t.Errorf("again it answers %v, and at first %v", again, first)
	}
	if now := nettest.Snapshot(t, pod).Only("link").String(); now != was {
		t.Errorf("again the pod has\n%s\nand had\n%s", now, was)
	}
	if moved := s.add(lanRequest("c", other)); addresses(moved)[0] == addresses(first)[0] {
		t.Errorf("in another namespace it has the same address")
	}
	nettest.Eventually(t, "the old incarnation is gone", func() bool { return len(s.index.All()) == 1 })
	s.wantClean()
}

// CHECK names what somebody has changed.
func TestMacvlanCheck(t *testing.T) {
	for _, c := range []struct{ name, damage, says string }{
		{name: "well"},
		{"address", "ip addr del 192.0.2.65/24 dev eth0", "192.0.2.65"},
		{"route", "ip route del default", "0.0.0.0/0"},
		{"MAC", "ip link set eth0 address 02:00:00:00:00:77", "mac"},
		{"down", "ip link set eth0 down", "down"},
		{"gone", "ip link del eth0", "gone"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := startSegmented(t, segmentFile)
			pod := nettest.Pod(t)
			raw, err := s.Add(t.Context(), lanRequest("c", pod), now())
			must(t, err)
			if c.damage != "" {
				nettest.Run(t, pod, c.damage)
			}
			err = s.Check(t.Context(), lanRequest("c", pod, `"prevResult":`+string(raw)), now())
			if c.damage == "" {
				must(t, err)
			} else {
				wantError(t, err, 103, c.says)
			}
		})
	}
}

// A restart keeps pods, takes again what is missing, and releases what is gone.
func TestMacvlanRestart(t *testing.T) {
	s := startSegmented(t, segmentFile)
	a, b, c := nettest.Pod(t), nettest.Pod(t), nettest.Pod(t)
	res := s.add(lanRequest("a", a))
	s.add(lanRequest("b", b))
	s.add(lanRequest("c", c))
	nettest.Run(t, a, "ip link del eth0")
	nettest.Delete(t, b)
	s.restart()
	nettest.Eventually(t, "the pod that is gone is released", func() bool { return len(s.index.All()) == 2 })
	nettest.Ping(t, c, addresses(res)[0])
	s.wantClean()
}

// A DEL while the agent is away waits in the queue. The agent does it when it is back.
func TestMacvlanAgentAway(t *testing.T) {
	s := startSegmented(t, segmentFile)
	pod := nettest.Pod(t)
	s.add(lanRequest("c", pod))
	d := s.deletion("c", "")
	s.close()
	s.enqueue(d)
	s.bringUp()
	nettest.Eventually(t, "the pod is released", func() bool { return len(s.index.All()) == 0 })
	if there, err := pod.HasLink("eth0"); err != nil || there {
		t.Errorf("the macvlan is left: %t, %v", there, err)
	}
}

// Freed addresses rest, and the next pod with an address has the last one's MAC. What a pod asks for it gets.
func TestMacvlanAddresses(t *testing.T) {
	s := startSegmented(t, segmentFile)
	first := s.add(lanRequest("a", nettest.Pod(t)))
	s.rig.cooldown = time.Hour
	s.restart()
	s.del("a", true)
	same := addresses(first)[0]
	_, err := s.tryAdd(lanRequest("b", nettest.Pod(t), fmt.Sprintf(`"runtimeConfig":{"ips":["%s"]}`, same)))
	wantError(t, err, 101, "in cooldown until")
	s.rig.cooldown = 0
	asked := s.add(lanRequest("c", nettest.Pod(t), `"runtimeConfig":{"ips":["192.0.2.70"],"mac":"02:11:22:33:44:55"}`))
	if addresses(asked)[0] != netip.MustParseAddr("192.0.2.70") || asked.Interfaces[0].Mac != "02:11:22:33:44:55" {
		t.Errorf("it asked, and has %v", asked)
	}
}

// The pod with an address has the MAC that the address's last pod had.
func TestMacvlanMACStays(t *testing.T) {
	s := startSegmented(t, segmentFile)
	wish := `"runtimeConfig":{"ips":["192.0.2.70","2001:db8::46"]}`
	first := s.add(lanRequest("a", nettest.Pod(t), wish))
	s.del("a", true)
	if next := s.add(lanRequest("b", nettest.Pod(t), wish)); next.Interfaces[0].Mac != first.Interfaces[0].Mac {
		t.Errorf("the MAC was %s, and is %s", first.Interfaces[0].Mac, next.Interfaces[0].Mac)
	}
}

// What a macvlan cannot have is refused, with what is wrong by its name.
func TestMacvlanRefused(t *testing.T) {
	s := startSegmented(t, segmentFile)
	s.add(request("routed", nettest.Pod(t)))
	veth := s.List(api.Filter{})[0].HostVeth
	for _, c := range []struct {
		keys []string
		code uint
		says string
	}{
		{[]string{`"mode":"macvlan"`, `"master":"uplink"`}, 7, "pool default has no segment, and mode macvlan needs one that has a segment: these are lan"},
		{[]string{`"pool":"lan"`}, 7, "pool lan has a segment, and mode routed needs one that has none: these are default"},
		{[]string{`"mode":"macvlan"`, `"pool":"lan"`}, 7, "master is missing"},
		{[]string{`"master":"uplink"`}, 2, "only mode macvlan has this key"},
		{[]string{`"macvlanMode":"bridge"`}, 2, "only mode macvlan has this key"},
		{append(slices.Clone(onLAN), `"macvlanMode":"source"`), 7, `"source"`},
		{[]string{`"mode":"macvlan"`, `"pool":"lan"`, `"master":"nosuch"`}, 11, `"nosuch"`},
		{[]string{`"mode":"macvlan"`, `"pool":"lan"`, fmt.Sprintf(`"master":%q`, veth)}, 7, "Berth's own"},
		{append(slices.Clone(onLAN), `"mtu":1000`), 7, "1280"},
		{append(slices.Clone(onLAN), `"runtimeConfig":{"portMappings":[{"hostPort":80,"containerPort":80,"protocol":"tcp"}]}`), 7, "no host ports"},
		{append(slices.Clone(onLAN), `"runtimeConfig":{"bandwidth":{"ingressRate":1000000,"ingressBurst":1000000}}`), 7, "no limits"},
		{append(slices.Clone(onLAN), `"macvlanMode":"passthru"`, `"runtimeConfig":{"mac":"02:11:22:33:44:55"}`), 7, "MAC of its master"},
	} {
		_, err := s.tryAdd(request("c", nettest.Pod(t), c.keys...))
		wantError(t, err, c.code, c.says)
	}
	if used := s.ground.Figures(); used[1].CIDRs[0].Used+used[1].CIDRs[0].Resting > 0 {
		t.Errorf("refused pods have taken addresses: %+v", used[1])
	}
}

// The agent makes no route to a segment, and starts where the node itself is on it. An address of the node in the pool is refused.
func TestSegmentBesideTheNode(t *testing.T) {
	s := startSegmented(t, segmentFile, "ip addr add 192.0.2.3/24 dev uplink")
	routes := nettest.Snapshot(t, nil).Only("route").String()
	if strings.Contains(routes, "192.0.2.64") || !strings.Contains(routes, "10.88.0.0/24") {
		t.Errorf("the node has\n%s", routes)
	}
	c, err := s.conf()
	must(t, err)
	must(t, s.ground.RefuseOverlaps(c))
	if pools := fmt.Sprint(s.ground.Ruleset().Pools); pools != "[10.88.0.0/24]" {
		t.Errorf("the table's pools are %s", pools)
	}
	s.onNode("ip addr add 192.0.2.70/24 dev uplink")
	if err := s.ground.RefuseOverlaps(c); err == nil || !strings.Contains(err.Error(), "192.0.2.70/24 of uplink") {
		t.Errorf("with an address of the node in the pool: %v", err)
	}
	s.onNode("ip addr del 192.0.2.70/24 dev uplink")
}

// A pool keeps its sort while pods have its addresses, also over a restart.
func TestSegmentTurns(t *testing.T) {
	s := startSegmented(t, segmentFile)
	s.add(lanRequest("a", nettest.Pod(t)))
	turned := "pools:\n- {name: lan, cidrs: [192.0.2.64/28]}\n"
	s.configure(turned)
	c, err := s.conf()
	must(t, err)
	if err := s.ground.Reload(t.Context(), c); err == nil || !strings.Contains(err.Error(), "192.0.2.64/28 of a pool with a segment") {
		t.Errorf("a reload says %v", err)
	}
	s.close()
	must(t, s.open())
	must(t, s.Restore(t.Context()))
	_, err = s.tryAdd(request("b", nettest.Pod(t), `"pool":"lan"`))
	wantError(t, err, 11, "192.0.2.64/28 of a pool with a segment")
	if routes := nettest.Snapshot(t, nil).Only("route").String(); strings.Contains(routes, "192.0.2.64") {
		t.Errorf("the node has\n%s", routes)
	}
	s.configure(segmentFile)
	s.restart()
	s.add(lanRequest("b", nettest.Pod(t)))
}

// A ledger that is made anew has the pods' macvlans, so that no other pod gets their addresses, and a DEL takes them away. A pod that calls its
// macvlan another pod's, or gives it another pod's address, takes nothing of that pod.
func TestMacvlanRebuilt(t *testing.T) {
	nettest.Program(t, "ip") // a skip has to come here: no agent could clean up once its ledger is lost
	s := startSegmented(t, segmentFile)
	a, b, routed := nettest.Pod(t), nettest.Pod(t), nettest.Pod(t)
	res := s.add(lanRequest("a", a))
	s.add(lanRequest("b", b))
	was := s.add(request("routed", routed))
	nettest.Run(t, b, "ip addr add 192.0.2.65/24 dev eth0") // the address of a
	s.lose(false)
	built, err := s.rebuild()
	must(t, err)
	if len(built.Pods) != 3 {
		t.Fatalf("found are %+v", built.Pods)
	}
	must(t, s.open())
	must(t, s.Restore(t.Context()))
	s.wantClean()
	if now := s.add(lanRequest("a", a)); fmt.Sprint(addresses(now)[0]) != "2001:db8::41" || now.Interfaces[0].Mac != res.Interfaces[0].Mac {
		t.Errorf("a has %+v, and had %+v", now, res)
	}
	if now := s.add(request("routed", routed)); told(now) != told(was) {
		t.Errorf("the routed pod has %s, and had %s", told(now), told(was))
	}
	_, err = s.tryAdd(lanRequest("c", nettest.Pod(t), `"runtimeConfig":{"ips":["2001:db8::41"]}`))
	wantError(t, err, 101, "2001:db8::41")
	for _, c := range []string{"a", "b"} {
		s.del(c, true)
	}
	for _, pod := range []*ns.Netns{a, b} {
		if there, err := pod.HasLink("eth0"); err != nil || there {
			t.Errorf("a macvlan is left: %t, %v", there, err)
		}
	}
}

// An agent whose ledger is lost refuses to begin another one while a macvlan of its pods is there: nobody else may get the address. Once the pod is
// gone, the agent begins.
func TestMacvlanWithoutALedger(t *testing.T) {
	nettest.Program(t, "ip") // a skip has to come here: no agent could clean up once its ledger is lost
	s := startSegmented(t, segmentFile)
	a := nettest.Pod(t)
	s.add(lanRequest("a", a))
	s.lose(false)
	if err := s.open(); !errors.Is(err, rebuild.ErrLedgerLost) || !strings.Contains(err.Error(), "net/a/eth0") || !strings.Contains(err.Error(), "--rebuild-ledger") {
		t.Fatalf("it begins with %v", err)
	}
	nettest.Run(t, a, "ip link del eth0")
	must(t, s.open())
	must(t, s.Restore(t.Context()))
}
