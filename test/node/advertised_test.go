package node

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
)

// A node whose IPv6 default route came by a router advertisement keeps the route when the agent
// turns IPv6 forwarding on, and goes on to hear its router: on the links that heard routers
// before, on those that come later, and on no other. moby #43466: a daemon turned
// forwarding on, and its host lost the default route.
func TestRouterIsHeardOnceTheNodeForwards(t *testing.T) {
	node, router := nettest.Node(t), nettest.Node(t)
	a := newAgent(t, node, pools)
	for _, command := range []string{
		"ip link add up0 type veth peer name down0 netns " + router.Ref().Path,
		"ip link add deaf0 type bridge",
		"ip link set up0 up",
	} {
		nettest.Run(t, node, command)
	}
	nettest.Sysctl(t, node, "ipv6/conf/deaf0/accept_ra", "0")
	nettest.Run(t, router, "ip link set down0 up")
	via := netip.MustParseAddr("fe80::1")
	nettest.Run(t, router, "ip -6 addr add fe80::1/64 dev down0 nodad")
	prefix := netip.MustParsePrefix("2001:db8:5::/64")
	shows := func(kind, what string) bool {
		return strings.Contains(nettest.Snapshot(t, node).Only(kind).String(), what)
	}
	hears := func(when string) {
		t.Helper()
		nettest.Eventually(t, when+": the default route", func() bool {
			nettest.Advertise(t, router, "down0", via, prefix)
			return shows("route", "via fe80::1")
		})
	}
	value := func(name string) (v string) {
		t.Helper()
		must(t, node.Do(func() (err error) { v, err = ns.Sysctl("ipv6/conf/" + name); return err }))
		return v
	}
	hears("before there is an agent")

	a.start()
	if value("all/forwarding") != "1" {
		t.Fatal("the agent does not turn forwarding on")
	}
	if !shows("route", "via fe80::1") {
		t.Error("the agent's start takes the default route away")
	}
	const says = "accept_ra is 2 now, for up0, default, so that"
	ctx, cancel := context.WithTimeout(t.Context(), nettest.Deadline)
	defer cancel()
	for e, err := range a.api.Events(ctx, new(uint64), nil) {
		must(t, err)
		if e.Type == api.EventSet {
			if !strings.Contains(e.Message, says) {
				t.Errorf("the agent tells %q, not %q", e.Message, says)
			}
			break
		}
	}
	if log := a.log.String(); strings.Count(log, "accept_ra") != 1 || !strings.Contains(log, `links="[up0 default]"`) {
		t.Error("the agent does not say once of which links")
	}
	nettest.Run(t, node, "ip -6 route flush proto ra")
	hears("while the agent runs")
	for name, want := range map[string]string{"up0/accept_ra": "2", "deaf0/accept_ra": "0", "lo/accept_ra": "1"} {
		if got := value(name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	nettest.Run(t, node, "ip link del up0")
	nettest.Run(t, node, "ip link add up0 type veth peer name down0 netns "+router.Ref().Path)
	nettest.Run(t, node, "ip link set up0 up")
	nettest.Run(t, router, "ip link set down0 up")
	nettest.Run(t, router, "ip -6 addr add fe80::1/64 dev down0 nodad")
	hears("on a link that came later")
	a.remove()
	hears("after berthd --remove")
}
