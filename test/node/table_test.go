package node

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
)

// flush is `nft flush ruleset`.
func flush(t *testing.T) {
	t.Helper()
	c, err := nftables.New()
	must(t, err)
	c.FlushRuleset()
	if err := c.Flush(); err != nil {
		t.Fatalf("nft flush ruleset: %v", err)
	}
}

// Of linux/netfilter/nfnetlink.h and nf_tables.h.
const (
	batchBegin = 0x10
	batchEnd   = 0x11
	newTable   = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWTABLE
	delTable   = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_DELTABLE
	tableOwner = 2 // NFT_TABLE_F_OWNER
)

// squat takes the agent's table away and holds its name, as only a table with
// an owner can be held. The agent cannot write its own table until the test
// calls leave.
//
//	delete table inet NAME; table inet NAME { flags owner; }
func squat(t *testing.T, table string) (leave func()) {
	t.Helper()
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	must(t, err)
	t.Cleanup(func() { c.Close() })
	message := func(typ netlink.HeaderType, flags netlink.HeaderFlags, family byte, subsystem byte, attrs ...netlink.Attribute) netlink.Message {
		raw, err := netlink.MarshalAttributes(attrs)
		must(t, err)
		return netlink.Message{
			Header: netlink.Header{Type: typ, Flags: netlink.Request | flags},
			Data:   append([]byte{family, 0, 0, subsystem}, raw...),
		}
	}
	name := netlink.Attribute{Type: unix.NFTA_TABLE_NAME, Data: append([]byte(table), 0)}
	owned := netlink.Attribute{Type: unix.NFTA_TABLE_FLAGS, Data: binary.BigEndian.AppendUint32(nil, tableOwner)}
	sent, err := c.SendMessages([]netlink.Message{
		message(batchBegin, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES),
		message(delTable, 0, unix.NFPROTO_INET, 0, name),
		message(newTable, netlink.Create|netlink.Acknowledge, unix.NFPROTO_INET, 0, name, owned),
		message(batchEnd, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES),
	})
	if err == nil {
		_, err = c.Receive()
	}
	if err != nil || len(sent) != 4 {
		t.Fatalf("squatting on table %s: %v", table, err)
	}
	return func() { c.Close() }
}

// table is the name of the agent's table.
func (a *agent) table() string {
	a.t.Helper()
	st, err := a.api.Status(a.t.Context(), "")
	must(a.t, err)
	return "berth-" + st.Instance
}

// wantCut deletes pods by GC, and stops the agent when the last of them is cut off, to keep it
// from deleting their links. The links that are left let nothing through, neither from their
// pod nor to it, for the node and for another pod. wantCut returns how many links it has looked
// at, and lets the agent go on.
func (a *agent) wantCut(ears []*ear, other *ns.Netns, alive attached, pods []*ns.Netns, got []attached) (looked int) {
	a.t.Helper()
	a.stopAtCut(got, func() error {
		_, err := a.exec("GC", "", "", `"cni.dev/valid-attachments":[{"containerID":"alive","ifname":"eth0"}]`)
		return err
	})
	defer a.signal(unix.SIGCONT)
	for _, e := range ears {
		e.forget()
	}
	for i, p := range pods {
		if looked == 3 {
			return looked // the others are like these
		}
		inside := nettest.Snapshot(a.t, p).Only("link").String()
		if !strings.Contains(inside, "link eth0 ") {
			continue
		}
		looked++
		speak(a.t, p, ears)
		var probes sync.WaitGroup
		for j, addr := range got[i].addrs {
			probes.Go(func() { nettest.NoPing(a.t, p, alive.addrs[j]) }) // to a pod
			probes.Go(func() { nettest.NoPing(a.t, p, nodeAddrs[j]) })   // to the node
			probes.Go(func() { nettest.NoPing(a.t, other, addr) })       // from a pod
			probes.Go(func() { nettest.NoPing(a.t, nil, addr) })         // from the node
		}
		probes.Wait()
		for _, e := range ears {
			for _, addr := range got[i].addrs {
				if e.hears(addr) {
					a.t.Errorf("%s is deleted, and sends to %s", addr, e.at)
				}
			}
		}
	}
	return looked
}

// A pod that is deleted is cut off when DEL has answered: by the table, also if somebody has
// flushed the table a moment ago; or by the pod's link, if somebody keeps the agent from having
// a table.
func TestCut(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(*testing.T, *agent) (undo func())
	}{
		{"table", func(*testing.T, *agent) func() { return func() {} }},
		{"flushed", func(t *testing.T, a *agent) func() {
			flush(t)
			return func() {}
		}},
		{"held by somebody else", func(t *testing.T, a *agent) func() {
			a.wantRight()
			var leave func()
			a.says("could not restore the nftables table", func() { leave = squat(t, a.table()) })
			return leave
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			hasAddresses(t)
			a := startAgent(t, pools)
			other := nettest.Pod(t)
			alive := a.add("alive", other)
			ears := append(listen(t, other, alive.addrs...), listen(t, nil, nodeAddrs...)...)
			looked := 0
			for range 10 { // the links may all be gone before the agent is stopped
				pods, got := a.podsOf(20)
				for i := range pods {
					heardBy(t, ears, pods[i], got[i])
				}
				undo := c.do(t, a)
				looked = a.wantCut(ears, other, alive, pods, got)
				undo()
				nettest.Eventually(t, "the pods to be gone", func() bool { return len(a.list()) == 1 })
				if looked > 0 {
					break
				}
			}
			if t.Logf("links looked at: %d", looked); looked == 0 {
				t.Error("no link was left to look at")
			}
			pingAll(t, nil, alive)
			a.wantRight()
		})
	}
}

// wantRight waits until an audit finds nothing.
func (a *agent) wantRight() {
	a.t.Helper()
	nettest.Eventually(a.t, "an audit to find nothing", func() bool {
		return len(a.findings()) == 0
	})
}

// findings returns what an audit finds.
func (a *agent) findings() []string {
	a.t.Helper()
	audit, err := a.api.Audit(a.t.Context())
	must(a.t, err)
	var all []string
	for _, f := range audit.Findings {
		all = append(all, fmt.Sprint(f))
	}
	return all
}

// Whatever is flushed comes back as it was, and pods do not notice.
func TestFlush(t *testing.T) {
	hasAddresses(t)
	a := startAgent(t, pools)
	pods, got := a.podsOf(2)
	whole := nettest.Snapshot(t, nil).Only("nft")
	for range 10 {
		flush(t)
		nettest.Eventually(t, "the table to be written again", func() bool {
			return whole.Diff(nettest.Snapshot(t, nil).Only("nft")) == ""
		})
		pingAll(t, pods[0], got[1])
	}
	flush(t) // while nobody looks
	a.kill()
	flush(t)
	a.start()
	nettest.Same(t, whole, nettest.Snapshot(t, nil).Only("nft"), "after a restart the table differs")
	a.wantClean()
}

// server is a machine that the node reaches by a link of its own, and that
// finds the way to the pools.
type server struct {
	at   *ns.Netns
	tcp4 netip.AddrPort
	tcp6 netip.AddrPort
}

func newServer(t *testing.T) server {
	t.Helper()
	s := server{at: nettest.Node(t)}
	nettest.Run(t, nil, "ip link add out type veth peer name in netns "+nameOf(s.at))
	t.Cleanup(func() { nettest.Run(t, nil, "ip link del out") })
	for _, c := range []string{"link set in up", "addr add 203.0.113.2/24 dev in", "addr add 2001:db8:1::2/64 dev in nodad"} {
		nettest.Run(t, s.at, "ip "+c)
	}
	for _, c := range []string{"link set out up", "addr add 203.0.113.1/24 dev out", "addr add 2001:db8:1::1/64 dev out nodad"} {
		nettest.Run(t, nil, "ip "+c)
	}
	nettest.Run(t, s.at, "ip route add 10.88.0.0/24 via 203.0.113.1")
	nettest.Run(t, s.at, "ip route add fd00:88::/64 via 2001:db8:1::1")
	s.tcp4 = nettest.Serve(t, s.at, "tcp", "203.0.113.2:0")
	s.tcp6 = nettest.Serve(t, s.at, "tcp", "[2001:db8:1::2]:0")
	return s
}

// nameOf is the namespace's name, as ip(8) has it.
func nameOf(at *ns.Netns) string { return strings.TrimPrefix(at.Ref().Path, "/run/netns/") }

// sees returns the addresses at which the server sees a pod.
func (s server) sees(t *testing.T, pod *ns.Netns) string {
	t.Helper()
	var seen []string
	for _, to := range []netip.AddrPort{s.tcp4, s.tcp6} {
		from, err := nettest.Talk(pod, "tcp", to, 5*time.Second)
		if err != nil {
			t.Errorf("%v", err)
			continue
		}
		seen = append(seen, from.Addr().String())
	}
	return strings.Join(seen, " ")
}

// Packets that leave the pools have the node's address, unless the configuration says
// otherwise. SIGHUP puts a changed configuration into force.
func TestMasquerade(t *testing.T) {
	const node, direct = "203.0.113.1 2001:db8:1::1", "10.88.0.1 fd00:88::1"
	nettest.Need(t)
	s := newServer(t)
	a := newAgent(t, nil, pools)
	a.start()
	pod := nettest.Pod(t)
	a.add("c", pod)
	for _, c := range []struct{ yaml, want string }{
		{"", node},
		{"masquerade: {enabled: false}", direct},
		{"masquerade: {enabled: true}", node},
		{"masquerade: {excludedCIDRs: [203.0.113.0/24, '2001:db8:1::/64']}", direct},
		{"masquerade: {excludedCIDRs: [203.0.113.0/24]}", "10.88.0.1 2001:db8:1::1"},
		{"masquerade: {excludedCIDRs: [198.51.100.0/24]}", node},
	} {
		if c.yaml != "" {
			a.configure(c.yaml)
			a.reload(inForce)
		}
		if got := s.sees(t, pod); got != c.want {
			t.Errorf("with %q the server sees %s, want %s", c.yaml, got, c.want)
		}
		if got := s.sees(t, nil); got != node {
			t.Errorf("with %q the server sees the node at %s, want %s", c.yaml, got, node)
		}
		a.wantClean()
	}
	a.releaseAll()
	a.remove()
	for _, addr := range strings.Fields(direct) {
		if left := nettest.Snapshot(t, nil).String(); strings.Contains(left, addr+" ") {
			t.Errorf("what is left names the pod's address %s:\n%s", addr, left)
		}
	}
}
