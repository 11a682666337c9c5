package hostile

import (
	"fmt"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
)

// Somebody, such as a udev rule or another CNI plugin, has renamed the host's end of
// a pod's link just before its DEL; the agent lives, or is dead and comes back. DEL
// finds the link: when it is answered the pod reaches nobody, and soon the link is
// gone. An audit finds nothing (t19.sh).
func TestRenamedLinkIsCutAndDeleted(t *testing.T) {
	for _, c := range []struct {
		name     string
		killed   bool
		prevless bool // the runtime has lost what ADD answered
	}{
		{name: "alive"},
		{name: "alive, without prevResult", prevless: true},
		{name: "agent dead", killed: true},
		{name: "agent dead, without prevResult", killed: true, prevless: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNode(t, plain)
			v, a := n.add("v"), n.add("a")
			nettest.Ping(t, a.at, v.ip4)
			if c.killed {
				n.kill()
			}
			nettest.Run(t, nil, "ip link set "+a.host+" name ren0")
			if !c.prevless {
				n.del(a)
			} else if _, err := n.exec("DEL", a.id, a.at.Ref().Path); err != nil {
				t.Fatal(err)
			}
			nettest.NoPing(t, a.at, v.ip4)
			nettest.NoPing(t, a.at, v.ip6)
			nettest.NoPing(t, v.at, a.ip4)
			nettest.NoPing(t, nil, a.ip4)
			if c.killed {
				n.start()
			}
			nettest.Eventually(t, "the link to be gone", func() bool {
				return linkOf(t, "ren0") == nil && linkOf(t, a.host) == nil
			})
			nettest.NoPing(t, a.at, v.ip4)
			nettest.Ping(t, nil, v.ip4)
			n.Audit(t)
			n.wantGone()
		})
	}
}

// The same, and the address goes to the next pod. It is the next pod's alone: who
// asks for it finds the next pod, and the deleted one reaches nobody (t20.sh).
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
