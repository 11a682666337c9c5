package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kube/kubetest"
	"github.com/berth-net/berth/internal/nad"
	"github.com/berth-net/berth/internal/nettest"
)

// networked is a node of a cluster whose pods may ask for networks.
type networked struct {
	*rig
	api  *kubetest.Server
	stop func()
}

// startNetworked starts a rig in a cluster that has the definitions a and b, which are Berth's own networks, and broken. keys are further
// lines of the agent's configuration.
func startNetworked(t *testing.T, keys ...string) *networked {
	t.Helper()
	n := &networked{rig: newRig(t), api: kubetest.Serve(t)}
	n.untracked()
	n.api.Put("nodes", kubetest.Object{
		"metadata": kubetest.Object{"name": "me"}, "spec": kubetest.Object{"podCIDRs": []any{"10.244.7.0/24"}},
		"status": kubetest.Object{"addresses": []any{kubetest.Object{"type": "InternalIP", "address": "192.0.2.1"}}},
	})
	for name, config := range map[string]string{
		"a": `{"cniVersion":"1.0.0","type":"berth-cni","capabilities":{"mac":true}}`, "b": `{"cniVersion":"1.0.0","type":"berth-cni","mtu":1400}`, "broken": `{"type":"../x"}`,
	} {
		n.define(name, config)
	}
	n.rig.pools = nil
	must(t, os.MkdirAll(filepath.Dir(n.root.Config()), 0o755))
	must(t, os.WriteFile(n.root.Config(), fmt.Appendf(nil, "cooldown: 1ms\nkubernetes: {node: me, kubeconfig: %q, routing: native, health: {enabled: false}, networks: true}\n%s", n.api.Kubeconfig(t), strings.Join(keys, "")), 0o644))
	n.begin()
	n.stop = sync.OnceFunc(n.plugs())
	t.Cleanup(func() { n.stop() })
	nettest.Eventually(t, "the node to have a pool", func() bool { return n.ground.Lacking("node") == nil && n.ground.CIDRs("node") != nil })
	return n
}

// plugs runs what an agent does because its pods may ask for networks.
func (n *networked) plugs() (stop func()) {
	leave := n.follows()
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	v := n.plugger
	all.Go(func() { v.KeepPlugged(ctx) })
	return func() { cancel(); all.Wait(); leave() }
}

func (n *networked) define(name, config string) {
	n.api.Put("network-attachment-definitions", kubetest.Object{"metadata": kubetest.Object{"namespace": "default", "name": name}, "spec": kubetest.Object{"config": config}})
}

// pod makes a pod that asks for networks.
func (n *networked) pod(name, uid, asks string) {
	meta := kubetest.Object{"namespace": "default", "name": name, "uid": uid}
	if asks != "" {
		meta["annotations"] = kubetest.Object{nad.KeyNetworks: asks}
	}
	n.api.Put("pods", kubetest.Object{"metadata": meta, "spec": kubetest.Object{"nodeName": "me"}})
}

func podRequest(name, uid, container string, at *ns.Netns) api.AddRequest {
	req := request(container, at)
	req.Args = fmt.Sprintf("IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=%s;K8S_POD_UID=%s", name, uid)
	return req
}

// has waits until a pod has just these interfaces.
func (n *networked) has(at *ns.Netns, want ...string) {
	n.t.Helper()
	var have []string
	nettest.Eventually(n.t, fmt.Sprintf("the pod to have %v", want), func() bool {
		have = nil
		for _, name := range []string{"eth0", "net1", "net2", "web"} {
			if there, err := at.HasLink(name); err == nil && there {
				have = append(have, name)
			}
		}
		return slices.Equal(have, want)
	})
}

// says waits until a pod's status names these networks and interfaces.
func (n *networked) says(pod string, want ...string) {
	n.t.Helper()
	nettest.Eventually(n.t, fmt.Sprintf("the status of %s to say %v", pod, want), func() bool {
		var all []nadv1.NetworkStatus
		_ = json.Unmarshal([]byte(n.status(pod)), &all)
		var have []string
		for _, s := range all {
			have = append(have, fmt.Sprintf("%s=%s/%d", s.Name, s.Interface, len(s.IPs)))
		}
		return slices.Equal(have, want)
	})
}

// status is what the API server has of a pod's status.
func (n *networked) status(pod string) string {
	meta, _ := n.api.Get("pods", "default/"+pod)["metadata"].(kubetest.Object)
	annotations, _ := meta["annotations"].(kubetest.Object)
	text, _ := annotations[nad.KeyStatus].(string)
	return text
}

// multus #1372, #822: DEL hung, or failed, while the API server was away. multus, general: DEL missed what was attached later.
// Here a pod gets the networks that it asks for, and a status that says so; what it asks for later, and does not ask for any more, comes
// and goes while it runs; and one DEL takes all of them away, while the API server is away and the definitions are gone.
func TestAsksForNetworks(t *testing.T) {
	n := startNetworked(t)
	at := nettest.Pod(t)
	n.pod("web", "u1", "a,b@web")
	r := n.add(podRequest("web", "u1", "c1", at))
	if len(r.IPs) != 1 || len(r.Interfaces) != 2 || r.Interfaces[1].Name != "eth0" {
		t.Errorf("the result is %+v", r)
	}
	n.has(at, "eth0", "net1", "web")
	n.says("web", "net=eth0/1", "default/a=net1/1", "default/b=web/1")
	n.pod("web", "u1", `[{"name":"b","interface":"web"},{"name":"a","mac":"02:00:00:00:00:07"}]`)
	n.has(at, "eth0", "net2", "web")
	n.says("web", "net=eth0/1", "default/b=web/1", "default/a=net2/1")
	n.wantClean()
	n.api.Delete("network-attachment-definitions", "default/a")
	n.api.Break(http.StatusServiceUnavailable)
	n.del("c1", true)
	n.has(at)
	if left := n.index.All(); len(left) > 0 {
		t.Errorf("the ledger has %v", left)
	}
}

// configured are plugins, in memory, that note with which configuration they are executed.
type configured struct{ otherPlugins }

func (p *configured) ExecPlugin(ctx context.Context, path string, in []byte, environ []string) ([]byte, error) {
	out, err := p.otherPlugins.ExecPlugin(ctx, path, in, environ)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.runs[len(p.runs)-1] += " " + string(in)
	return out, err
}

// multus, general: DEL read the definition anew, and undid what the definition said by then. Here definitions change while a pod has their
// networks, which become other plugins' or Berth's own, or cannot be read any more: DEL is about what the pod was given, and
// executes the plugins of then, with the configuration of then. A pod that comes now gets the new networks.
func TestDefinitionChanged(t *testing.T) {
	n := startNetworked(t)
	plugins := &configured{}
	n.node.Delegates.Exec = plugins
	ran := func(want ...string) {
		t.Helper()
		plugins.mu.Lock()
		defer plugins.mu.Unlock()
		if !slices.Equal(plugins.runs, want) {
			t.Errorf("executed\n%s\nwant\n%s", strings.Join(plugins.runs, "\n"), strings.Join(want, "\n"))
		}
		plugins.runs = nil
	}
	n.define("others", `{"cniVersion":"1.1.0","type":"maker","key":"then"}`)
	at, late := nettest.Pod(t), nettest.Pod(t)
	n.pod("web", "u1", "a,others,b@web")
	n.add(podRequest("web", "u1", "c1", at))
	n.has(at, "eth0", "net1", "web")
	ran(`maker ADD c1 net2 {"cniVersion":"1.1.0","key":"then","name":"others","type":"maker"}`)

	n.define("a", `{"cniVersion":"1.1.0","type":"taker","key":"now"}`)
	n.define("others", `{"cniVersion":"1.0.0","type":"berth-cni"}`)
	n.define("b", `{"type":"../x"}`) // the agent hears of it last
	n.pod("late", "u2", "b")
	nettest.Eventually(t, "the agent to know the definitions of now", func() bool {
		_, err := n.tryAdd(podRequest("late", "u2", "c2", late))
		if err == nil {
			n.del("c2", true)
		}
		return err != nil && strings.Contains(err.Error(), "../x")
	})
	n.pod("other", "u3", "a,others")
	n.add(podRequest("other", "u3", "c3", late))
	n.has(late, "eth0", "net2")
	ran(`taker ADD c3 net1 {"cniVersion":"1.1.0","key":"now","name":"a","type":"taker"}`)

	n.del("c1", true)
	n.has(at)
	ran(`maker DEL c1 net2 {"cniVersion":"1.1.0","key":"then","name":"others","prevResult":{"cniVersion":"1.1.0"},"type":"maker"}`)
	n.del("c3", true)
	ran(`taker DEL c3 net1 {"cniVersion":"1.1.0","key":"now","name":"a","prevResult":{"cniVersion":"1.1.0"},"type":"taker"}`)
	if left := n.index.All(); len(left) > 0 {
		t.Errorf("the ledger has %v", left)
	}
}

// halting are plugins, in memory, whose ADD waits.
type halting struct {
	otherPlugins
	begun, goOn chan struct{}
}

func (p *halting) ExecPlugin(ctx context.Context, path string, in []byte, environ []string) ([]byte, error) {
	if slices.Contains(environ, "CNI_COMMAND=ADD") {
		p.begun <- struct{}{}
		<-p.goOn
	}
	return p.otherPlugins.ExecPlugin(ctx, path, in, environ)
}

// While a running pod is given networks, its status lags behind, which is no finding of an audit. In the end it says all.
func TestAuditWhilePlugging(t *testing.T) {
	n := startNetworked(t)
	plugins := &halting{begun: make(chan struct{}), goOn: make(chan struct{})}
	n.node.Delegates.Exec = plugins
	n.define("slow", `{"cniVersion":"1.1.0","type":"slow"}`)
	at := nettest.Pod(t)
	n.pod("web", "u1", "a")
	n.add(podRequest("web", "u1", "c1", at))
	n.says("web", "net=eth0/1", "default/a=net1/1")
	n.pod("web", "u1", "a,b,slow")
	<-plugins.begun
	n.has(at, "eth0", "net1", "net2")
	n.wantClean()
	plugins.goOn <- struct{}{}
	n.says("web", "net=eth0/1", "default/a=net1/1", "default/b=net2/1", "default/slow=/0") // its plugin names no interface
	n.del("c1", true)
	n.has(at)
}

// A further network of mode macvlan: the pod has an address of the segment beside its first one, its default route stays the first network's, and
// the status says so. It goes with the pod's first network, and alone.
func TestAsksForMacvlan(t *testing.T) {
	s := newSegment(t)
	n := startNetworked(t, "pools: [{name: lan, cidrs: [192.0.2.64/28], segment: {subnets: [192.0.2.0/24], gateways: [192.0.2.254]}}]\n")
	n.define("lan", `{"cniVersion":"1.0.0","type":"berth-cni","mode":"macvlan","master":"uplink","pool":"lan","capabilities":{"ips":true}}`)
	n.define("wrong", `{"cniVersion":"1.0.0","type":"berth-cni","mode":"macvlan","master":"uplink"}`)
	at := nettest.Pod(t)
	n.pod("web", "u1", `[{"name":"lan","ips":["192.0.2.70"]}]`)
	n.add(podRequest("web", "u1", "c1", at))
	n.has(at, "eth0", "net1")
	n.says("web", "net=eth0/1", "default/lan=net1/1")
	nettest.Ping(t, s, netip.MustParseAddr("192.0.2.70"))
	var all []nadv1.NetworkStatus
	must(t, json.Unmarshal([]byte(n.status("web")), &all))
	if mac := all[1].Mac; mac == "" || all[1].IPs[0] != "192.0.2.70" || !slices.Equal(all[1].Gateway, []string{"192.0.2.254"}) {
		t.Errorf("the status says %+v", all[1])
	}
	if routes := nettest.Snapshot(t, at).Only("route").String(); !strings.Contains(routes, "default dev eth0 via 169.254.1.1 table 254 proto 98 metric 0") {
		t.Errorf("the pod has\n%s", routes)
	}
	n.wantClean()
	n.pod("web", "u1", "")
	n.has(at, "eth0")
	n.pod("web", "u1", "lan")
	n.has(at, "eth0", "net1")
	n.del("c1", true)
	n.has(at)
	n.pod("other", "u2", "wrong")
	_, err := n.tryAdd(podRequest("other", "u2", "c2", nettest.Pod(t)))
	wantError(t, err, 7, "network default/wrong as net1: pool node has no segment")
}

// A further network of mode bridge, beside a first one of mode routed: it goes with the pod's first network, and alone.
func TestAsksForBridge(t *testing.T) {
	s := newSegment(t)
	t.Cleanup(func() { nettest.Run(t, nil, "ip link del br0") })
	for _, line := range []string{"ip link add br0 type bridge mcast_snooping 0", "ip link set br0 addrgenmode none", "ip link set uplink master br0", "ip link set br0 up", "ip link show br0"} {
		nettest.Run(t, nil, line)
	}
	n := startNetworked(t, "pools: [{name: lan, cidrs: [192.0.2.64/28], segment: {subnets: [192.0.2.0/24], gateways: [192.0.2.254]}}]\n")
	n.define("lan", `{"cniVersion":"1.0.0","type":"berth-cni","mode":"bridge","bridge":"br0","pool":"lan","capabilities":{"ips":true}}`)
	at := nettest.Pod(t)
	n.pod("web", "u1", `[{"name":"lan","ips":["192.0.2.70"]}]`)
	n.add(podRequest("web", "u1", "c1", at))
	n.has(at, "eth0", "net1")
	n.says("web", "net=eth0/1", "default/lan=net1/1")
	nettest.Ping(t, s, netip.MustParseAddr("192.0.2.70"))
	n.wantClean()
	n.pod("web", "u1", "")
	n.has(at, "eth0")
	n.pod("web", "u1", "lan")
	n.has(at, "eth0", "net1")
	n.del("c1", true)
	n.has(at)
}

// What the API server cannot say, or says wrongly, keeps a pod from coming, with a reason, and leaves nothing.
func TestNetworksRefused(t *testing.T) {
	n := startNetworked(t)
	at := nettest.Pod(t)
	for asks, want := range map[string]struct {
		code uint
		says string
	}{
		"a,none":                            {11, "default/none"},
		"a,broken":                          {7, "default/broken"},
		"a@eth0":                            {7, `interface is "eth0"`},
		"a,b@net1":                          {7, `"net1"`},
		"[{":                                {6, "annotation"},
		`[{"name":"a","ips":["10.1.1.1"]}]`: {7, "ips"},
		"a,other/b":                         {11, "other/b"},
		strings.Repeat("a,", 199) + "a":     {7, "200 networks"},
	} {
		n.pod("web", "u1", asks)
		nettest.Eventually(t, "the agent to know it", func() bool {
			nets, _, err := n.networks.Cluster.Asks(t.Context(), &api.Pod{Namespace: "default", Name: "web"})
			return err == nil && nets == asks
		})
		_, err := n.tryAdd(podRequest("web", "u1", "c1", at))
		wantError(t, err, want.code, want.says)
		if len(n.index.All()) != 0 {
			t.Errorf("%.40s: left are %v", asks, n.index.All())
		}
	}
	n.api.Delete("pods", "default/web")
	n.pod("web", "u2", "a")
	nettest.Eventually(t, "the successor to be known", func() bool {
		nets, _, err := n.networks.Cluster.Asks(t.Context(), &api.Pod{Namespace: "default", Name: "web", UID: "u2"})
		return err == nil && nets == "a"
	})
	_, err := n.tryAdd(podRequest("web", "u1", "c1", at))
	wantError(t, err, 11, "UID")
	n.add(podRequest("web", "u2", "c2", at))
	n.has(at, "eth0", "net1")
}

// A further network fails after the first ones have been made: nothing of the pod stays.
func TestNetworkFails(t *testing.T) {
	n := startNetworked(t)
	at := nettest.Pod(t)
	n.define("absent", `{"cniVersion":"1.0.0","type":"absent-plugin"}`)
	n.pod("web", "u1", "a,absent")
	_, err := n.tryAdd(podRequest("web", "u1", "c1", at))
	wantError(t, err, 11, "network default/absent as net2")
	nettest.Eventually(t, "all to be gone", func() bool { return len(n.index.All()) == 0 })
	n.has(at)
}

// A running pod has a network that leads its default route, keeps that network, and asks for a second one that is to lead it: the second one is refused, and
// the first one stays as it is. Once the pod has given the first one back, it gets the second one.
func TestSecondDefaultRoute(t *testing.T) {
	n := startNetworked(t)
	at := nettest.Pod(t)
	lead := func(name, ifname string) string {
		return fmt.Sprintf(`{"name":%q,"interface":%q,"default-route":["169.254.1.1"]}`, name, ifname)
	}
	n.pod("web", "u1", "["+lead("a", "net1")+"]")
	n.add(podRequest("web", "u1", "c1", at))
	n.has(at, "eth0", "net1")
	n.stop() // the test plugs
	defer n.follows()()
	asks := func(text string) error { return n.asks(t.Context(), text) }
	keeps := `[{"name":"a","interface":"net1"},` + lead("b", "web") + `]` // a change of default-route alone changes nothing
	wantError(t, asks(keeps), 7, "network default/a as net1 has the default route")
	n.has(at, "eth0", "net1")
	must(t, asks("["+lead("b", "web")+"]"))
	n.has(at, "eth0", "web")
	n.del("c1", true)
}

// The agent was away while the pod asked for other networks, and while the API server could not be told: both are made good.
func TestAskedWhileAway(t *testing.T) {
	n := startNetworked(t)
	at := nettest.Pod(t)
	n.pod("web", "u1", "a")
	n.add(podRequest("web", "u1", "c1", at))
	n.has(at, "eth0", "net1")
	n.stop()
	n.pod("web", "u1", "b")
	n.restart()
	n.stop = sync.OnceFunc(n.plugs())
	n.has(at, "eth0", "net1")
	n.says("web", "net=eth0/1", "default/b=net1/1")
	n.pod("web", "u1", "")
	n.has(at, "eth0")
	n.says("web", "net=eth0/1")
}

// A ledger that is made anew knows which attachments are one pod's: one DEL takes all of them away.
func TestNetworksRebuilt(t *testing.T) {
	nettest.Program(t, "ip") // a skip has to come here: no agent could clean up once its ledger is lost
	n := startNetworked(t)
	at, other := nettest.Pod(t), nettest.Pod(t)
	n.pod("web", "u1", "a,b@web")
	n.pod("other", "u2", "a")
	n.add(podRequest("web", "u1", "c1", at))
	n.add(podRequest("other", "u2", "c2", other))
	n.stop()
	n.lose(false)
	built, err := n.rebuild()
	must(t, err)
	if len(built.Pods) != 5 {
		t.Errorf("%d attachments are found, want 5", len(built.Pods))
	}
	n.bringUp()
	n.del("c1", true)
	n.has(at)
	n.has(other, "eth0", "net1")
	if got := n.List(api.Filter{}); len(got) != 2 {
		t.Errorf("left are %+v", got)
	}
	n.stop = sync.OnceFunc(n.plugs())
	n.del("c2", true)
	n.has(other)
}
