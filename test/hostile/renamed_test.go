package hostile

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// Somebody, such as a udev rule or another CNI plugin, has renamed the host's end of a pod's link
// just before the pod's DEL, and has maybe taken the link's alias, too. The agent lives, or is dead and
// comes back. DEL finds the link: when DEL is answered the pod reaches nobody. Soon the link is gone,
// and only then the ledger forgets the link's owner. An audit finds nothing (t19.sh).
func TestRenamedLinkIsCutAndDeleted(t *testing.T) {
	for _, c := range []struct {
		name      string
		aliasless bool
		killed    bool
		prevless  bool // the runtime has lost what ADD answered
	}{
		{name: "alive"},
		{name: "alive, without prevResult", prevless: true},
		{name: "agent dead", killed: true},
		{name: "agent dead, without prevResult", killed: true, prevless: true},
		{name: "alive, no alias", aliasless: true},
		{name: "alive, no alias, without prevResult", aliasless: true, prevless: true},
		{name: "agent dead, no alias", aliasless: true, killed: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNode(t, plain)
			v, a := n.add("v"), n.add("a")
			nettest.Ping(t, a.at, v.ip4)
			if c.killed {
				n.Crash()
			}
			nettest.Run(t, nil, "ip link set "+a.host+" name ren0"+map[bool]string{true: " alias somebody's"}[c.aliasless])
			n.delWith(a, !c.prevless)
			nettest.NoPing(t, a.at, v.ip4)
			nettest.NoPing(t, a.at, v.ip6)
			nettest.NoPing(t, v.at, a.ip4)
			nettest.NoPing(t, nil, a.ip4)
			nettest.NoPing(t, nil, a.ip6)
			if c.killed {
				n.Again()
			}
			n.wantReleased(a)
			nettest.NoPing(t, a.at, v.ip4)
			nettest.Ping(t, nil, v.ip4)
			n.Audit(t)
			n.wantGone()
		})
	}
}

// wantReleased waits until only one pod is left. Then the link of a, now called ren0, must be gone.
func (n *node) wantReleased(a *pod) {
	n.t.Helper()
	nettest.Eventually(n.t, "the pod to be gone", func() bool { return len(programs.List(n.t, n.API)) == 1 })
	if linkOf(n.t, "ren0") != nil || linkOf(n.t, a.host) != nil {
		n.t.Error("the pod's owner is forgotten, and its link is there")
	}
}

// Somebody has renamed a pod's link before the pod's DEL, and the address goes to the next pod. The
// address belongs to the next pod alone: packets to the address reach the next pod, and the deleted
// pod reaches nobody (t20.sh).
func TestRenamedLinkDoesNotPoisonTheAddress(t *testing.T) {
	n := newNode(t, "cooldown: 1ms\nsweepInterval: 1s\npools:\n- {name: default, cidrs: [10.88.0.0/30, 'fd00:88::/126']}\n")
	pods := n.adds("p", 2)
	v, a := pods[0], pods[1]
	nettest.Run(t, nil, "ip link set "+a.host+" name ren0")
	n.del(a)

	heirs := map[string]*pod{}
	nettest.Eventually(t, "the address to be given again", func() bool {
		next, err := n.tryAdd(fmt.Sprint("c", len(heirs)))
		if err != nil { // it still rests
			return false
		}
		heirs[next.ip4.String()] = next
		return next.ip4 == a.ip4
	})
	heir := heirs[a.ip4.String()]
	nettest.Eventually(t, "the route to the heir", func() bool {
		routes := nettest.Snapshot(t, nil).Only("route").String()
		return strings.Contains(routes, fmt.Sprintf("%s dev %s", a.ip4, heir.host)) || strings.Contains(routes, fmt.Sprintf("%s/32 dev %s", a.ip4, heir.host))
	})
	nettest.Ping(t, v.at, a.ip4)
	nettest.Ping(t, heir.at, v.ip4)
	nettest.NoPing(t, a.at, v.ip4)
	if linkOf(t, "ren0") != nil {
		t.Error("the deleted pod's link is still there, and its address is another pod's")
	}
	n.Audit(t)
	n.wantGone()
}

// Somebody has taken the name and the alias from a pod's link, as a .link file of systemd-udevd
// with Name= and Alias= does. The other things that ADD gave the link show whose link it is. A
// living agent, and an agent that comes back, gives the link its name and alias back, and the pod
// can be reached.
func TestLinkWithoutNameAndAliasIsMended(t *testing.T) {
	for _, c := range []struct {
		name         string
		before, then func(n *node)
	}{
		{"alive", func(*node) {}, func(*node) {}},
		{"stopped", func(n *node) { n.hang() }, signal(unix.SIGCONT)},
		{"dead", (*node).Crash, (*node).Again},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNode(t, plain)
			v, a := n.add("v"), n.add("a")
			was := linkOf(t, a.host)
			c.before(n)
			nettest.Run(t, nil, "ip link set "+a.host+" name ren0 alias somebody's")
			c.then(n)
			nettest.Eventually(t, "the link to have its name and alias", func() bool {
				now := linkOf(t, a.host)
				return now != nil && now.Index == was.Index && now.Alias == was.Alias
			})
			nettest.Eventually(t, "nothing to be missing", func() bool { return n.check(a) == nil })
			nettest.Ping(t, v.at, a.ip4)
			nettest.Ping(t, a.at, v.ip6)
			n.wantGone()
		})
	}
}

// A pod's link has lost its name and its second name, the plugin has cut it off, the pod's
// network namespace is not at its path any more, and an agent starts that has never seen the
// link. The agent finds the link all the same, before it says that the link is gone.
func TestHiddenLinkIsFound(t *testing.T) {
	n := newNode(t, plain)
	v, a := n.add("v"), n.add("a")
	n.Crash()
	nettest.Run(t, nil, "ip link property del dev "+a.host+" altname berth-"+a.host)
	nettest.Run(t, nil, "ip link set "+a.host+" name ren0")
	n.del(a)
	must(t, unix.Unmount(a.at.Ref().Path, unix.MNT_DETACH))
	n.Again()
	n.wantReleased(a)
	nettest.Ping(t, nil, v.ip4)
	n.wantGone()
}

// A link that nobody owns has lost its name and its alias: the sweep recognizes the link by the
// other things that this agent gave it, and deletes it.
func TestLeftOverWithoutNameAndAliasIsSwept(t *testing.T) {
	n := newNode(t, strings.Replace(plain, "1h", "1s", 1))
	a := n.add("a")
	pod := filepath.Base(a.at.Ref().Path)
	host := "b" + a.host[1:5] + "aaaaaaaaaa" // of this agent, and of no incarnation
	for _, command := range []string{
		"ip link add ren0 type veth peer name eth1 netns " + pod,
		"ip link property add dev ren0 altname berth-" + host,
		"ip link set ren0 up group " + fmt.Sprint(linkOf(t, a.host).Group),
		"ip link add other0 type veth peer name eth2 netns " + pod, // of another program
	} {
		nettest.Run(t, nil, command)
	}
	nettest.Eventually(t, "the left-over to be swept", func() bool { return linkOf(t, "ren0") == nil })
	if linkOf(t, "other0") == nil {
		t.Error("another program's link is gone")
	}
	nettest.Ping(t, nil, a.ip4)
	n.wantGone()
}

// The agent is away, somebody has given a pod's link another alias, and another pod's DEL
// has a wrong prevResult, which names that link: nobody else is cut off.
func TestWrongResultCutsNobodyElse(t *testing.T) {
	n := newNode(t, plain)
	v, a := n.add("v"), n.add("a")
	n.Crash()
	nettest.Run(t, nil, "ip link set "+v.host+" alias somebody's")
	for _, netns := range []string{"", a.at.Ref().Path} {
		if _, err := n.Exec("DEL", a.id, netns, `"prevResult":`+v.result); err != nil {
			t.Fatal(err)
		}
	}
	nettest.Ping(t, nil, v.ip4)
	nettest.NoPing(t, nil, a.ip4)
	n.Again()
	nettest.Eventually(t, "the deleted pod to be gone", func() bool { return len(programs.List(n.t, n.API)) == 1 })
	nettest.Ping(t, nil, v.ip4)
	n.wantGone()
}

// delWith is DEL of a pod, with the result of its ADD or without one.
func (n *node) delWith(p *pod, prevResult bool) {
	n.t.Helper()
	if prevResult {
		n.del(p)
	} else if _, err := n.Exec("DEL", p.id, p.at.Ref().Path); err != nil {
		n.t.Fatal(err)
	}
}

// Somebody exchanges the names of two pods' links: each link gets its own name back, and both
// pods can be reached all the while. The agent was away, since a living agent mends the first of
// the renames.
func TestExchangedNamesAreMended(t *testing.T) {
	for _, c := range []struct {
		name         string
		before, then func(n *node)
	}{
		{"stopped", func(n *node) { n.hang() }, signal(unix.SIGCONT)},
		{"dead", (*node).Crash, (*node).Again},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNode(t, plain)
			v, a := n.add("v"), n.add("a")
			was := []*netlink.LinkAttrs{linkOf(t, v.host), linkOf(t, a.host)}
			c.before(n)
			for _, rename := range []string{v.host + " name ren0", a.host + " name " + v.host, "ren0 name " + a.host} {
				nettest.Run(t, nil, "ip link set "+rename)
			}
			nettest.Ping(t, v.at, a.ip4)
			c.then(n)
			nettest.Eventually(t, "each link to have its name", func() bool {
				now := []*netlink.LinkAttrs{linkOf(t, v.host), linkOf(t, a.host)}
				return now[0] != nil && now[1] != nil && now[0].Index == was[0].Index && now[1].Index == was[1].Index
			})
			nettest.Eventually(t, "nothing to be missing", func() bool { return n.check(v) == nil && n.check(a) == nil })
			nettest.Ping(t, v.at, a.ip4)
			n.Audit(t)
			n.del(a)
			nettest.NoPing(t, a.at, v.ip4)
			nettest.Ping(t, nil, v.ip4)
			n.wantGone()
		})
	}
}
