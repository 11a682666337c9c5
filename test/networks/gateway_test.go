package networks

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kube/kubetest"
	"github.com/berth-net/berth/internal/nad"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// leads returns a pod's default routes of IPv4 in the main table, as INTERFACE GATEWAY.
func leads(t testing.TB, pod *ns.Netns) (all []string) {
	t.Helper()
	c, err := rtnl.Open(pod)
	must(t, err)
	defer c.Close()
	names := map[int]string{}
	_, err = c.Links(func(l rtnl.Link) (bool, error) { names[l.Index] = l.Name; return false, nil })
	must(t, err)
	must(t, c.EachDefault(false, 100, func(d rtnl.Default) error {
		if d.Table == 0 {
			all = append(all, fmt.Sprint(names[d.Index], " ", d.Gateway))
		}
		return nil
	}))
	slices.Sort(all)
	return all
}

// newEquipped starts a node that has its pool, and what the pool needs.
func newEquipped(t testing.TB) *both {
	t.Helper()
	b := newBoth(t, false)
	nettest.Eventually(t, "the routes of the pool", func() bool {
		b.empty = b.state()
		text := b.empty.String()
		return strings.Contains(text, "unreachable 10.244.7.0/24") && strings.Contains(text, "local 169.254.255.1/32")
	})
	return b
}

// asks has the API's pod of a name ask for networks, and returns the ADD with which the runtime attaches it.
func (b *both) asks(name, networks string, at *ns.Netns) request {
	b.pod("default", name, kubetest.Object{nad.KeyNetworks: networks})
	return request{plugin: "berth-cni", verb: "ADD", container: "c-" + name, namespace: "default", name: name, netns: at.Ref().Path, version: "1.0.0"}
}

// A pod's default route leads through the network that has asked for it, beside Berth's own first network: the node still reaches the pod
// by that one, CHECK and audit find nothing, a restart changes nothing, and a pod that gives the network up has its first default route
// again.
func TestDefaultRoute(t *testing.T) {
	b := newEquipped(t)
	b.define("ptp", `{"cniVersion":"1.0.0","name":"ptp","type":"ptp",`+b.local("10.11.0.0/24")+`}`)
	at := nettest.Pod(t)
	r := b.asks("web", `[{"name":"ptp","default-route":["10.11.0.1"]}]`, at)
	result, err := b.exec(r)
	must(t, err)
	led, first := []string{"net1 10.11.0.1"}, []string{"eth0 169.254.1.1"}
	leadsBy := func(want []string) {
		t.Helper()
		nettest.Eventually(t, fmt.Sprintf("the pod's default route to be %q", want), func() bool { return slices.Equal(leads(t, at), want) })
	}
	leadsBy(led)
	address := strings.Split(strings.SplitAfter(string(result), `"address":"`)[1], "/")[0]
	nettest.Ping(t, nil, netip.MustParseAddr(address))
	check := r
	check.verb, check.prevResult = "CHECK", result
	_, err = b.exec(check)
	must(t, err)
	b.Audit(t)
	nettest.Run(t, at, "ip route del default")
	_, err = b.exec(check)
	programs.WantError(t, err, 103, "default route of the pod")
	b.Crash()
	b.Again()
	leadsBy(led)
	_, err = b.exec(check)
	must(t, err)
	b.asks("web", "", at)
	leadsBy(first)
	_, err = b.exec(check)
	must(t, err)
	b.asks("web", `[{"name":"ptp","default-route":["10.11.0.1"]}]`, at)
	leadsBy(led)
	r.verb = "DEL"
	_, err = b.exec(r)
	must(t, err)
	leadsBy(nil)
	b.nothingLeft()
}

// A network of Berth's own leads the pod's default route, too. What it cannot lead is refused, and leaves nothing.
func TestDefaultRouteRefused(t *testing.T) {
	b := newEquipped(t)
	b.define("own", `{"cniVersion":"1.0.0","name":"own","type":"berth-cni"}`)
	b.define("ptp", `{"cniVersion":"1.0.0","name":"ptp","type":"ptp",`+b.local("10.11.0.0/24")+`}`)
	at := nettest.Pod(t)
	one := `[{"name":"own","default-route":["169.254.1.1"]}]`
	for i, test := range []struct {
		asks string
		says string // "": nothing
	}{
		{one, ""},
		{`[{"name":"own","default-route":["10.244.7.1"]}]`, "expected 169.254.1.1"},
		{`[{"name":"own","default-route":["fe80::1"]}]`, "has no addresses of its family"},
		{`[{"name":"ptp","default-route":["fd00::1"]}]`, "interface net1 has no address of IPv6"},
		{`[{"name":"ptp","default-route":["192.0.2.77"]}]`, "on no network of interface net1"},
		{`[{"name":"ptp","default-route":[]}]`, "empty list"},
		{`[{"name":"ptp","default-route":["gateway"]}]`, "default-route"},
		{`[{"name":"ptp","default-route":["10.11.0.1"]},{"name":"own","default-route":["169.254.1.1"]}]`, "default-route is a second one for IPv4"},
	} {
		r := b.asks(fmt.Sprintf("web-%d", i), test.asks, at) // the agent may not have heard yet what a pod asks for anew
		r.keys = `,"delegates":[` + b.usual() + `]`
		result, err := b.exec(r)
		if test.says != "" {
			programs.WantError(t, err, 7, test.says)
		} else {
			must(t, err)
			if got := leads(t, at); !slices.Contains(got, "net1 169.254.1.1") {
				t.Errorf("the pod has %q", got)
			}
			check := r
			check.verb, check.prevResult = "CHECK", result
			_, err = b.exec(check)
			must(t, err)
			b.Audit(t)
		}
		r.verb = "DEL"
		_, err = b.exec(r)
		must(t, err)
		b.nothingLeft()
	}
}
