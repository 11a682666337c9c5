package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kinds/podgateway"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/nettest"
)

// This file has networks that a pod asks for while those that it had are on their way out.

// startPlugging starts a rig in a cluster whose other plugins are p, and whose kinds change f changes. The test plugs.
func startPlugging(t *testing.T, p *stubborn, f func(engine.Ledger, hold.Kinds) (engine.Ledger, hold.Kinds)) *networked {
	t.Helper()
	n := startNetworked(t)
	n.stop()
	n.plugins, n.decorate = p, f
	n.startAgain()
	return n
}

// startAgain starts the agent again. It follows the API server, and plugs nothing.
func (n *networked) startAgain() {
	n.t.Helper()
	n.stop()
	n.restart()
	n.stop = n.follows()
}

// asks has the pod web ask for networks, and plugs them, until ctx ends.
func (n *networked) asks(ctx context.Context, networks string) error {
	n.t.Helper()
	n.pod("web", "u1", networks)
	pod := api.Pod{Namespace: "default", Name: "web", UID: "u1"}
	nettest.Eventually(n.t, "the agent to know it", func() bool {
		nets, _, err := n.networks.Cluster.Asks(n.t.Context(), &pod)
		return err == nil && nets == networks
	})
	return n.plugger.Plug(ctx, &pod)
}

// further is the owner of a container's further network.
func (n *networked) further(container string) hold.ID {
	n.t.Helper()
	all := slices.DeleteFunc(n.index.Container(container), func(e *attachment.Entry) bool { return !e.Record.Further() })
	if len(all) != 1 {
		n.t.Fatalf("%d further networks of %s", len(all), container)
	}
	return all[0].Owner.ID
}

// soon is a context of somebody who does not wait for long.
func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// stubborn are plugins, in memory, whose verb fails as long as it is set: "PLUGIN VERB".
type stubborn struct {
	otherPlugins
	fails atomic.Value
}

func (p *stubborn) ExecPlugin(ctx context.Context, path string, in []byte, environ []string) ([]byte, error) {
	out, err := p.otherPlugins.ExecPlugin(ctx, path, in, environ)
	p.mu.Lock()
	defer p.mu.Unlock()
	if fails, _ := p.fails.Load().(string); fails != "" && strings.HasPrefix(p.runs[len(p.runs)-1], fails+" ") {
		p.runs[len(p.runs)-1] += " fails"
		return nil, errors.New("it fails")
	}
	return out, err
}

// ran wants that the plugins were executed so since the last call, but for repetitions of what failed.
func (p *stubborn) ran(t *testing.T, want ...string) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if got := slices.Compact(p.runs); !slices.Equal(got, want) {
		t.Errorf("executed %q, want %q", got, want)
	}
	p.runs = nil
}

// sticks makes releases of a pod's default routes fail while stuck is set. made says whether the routes are made; else they are thought of.
func sticks(stuck *atomic.Bool, made bool) func(engine.Ledger, hold.Kinds) (engine.Ledger, hold.Kinds) {
	return change(podgateway.KindName, func(k *hold.Kind) {
		release := k.Release
		k.Release = func(ctx context.Context, hs []hold.Hold) []error {
			if stuck.Load() {
				return []error{errors.New("stuck")}
			}
			return release(ctx, hs)
		}
		if !made {
			k.Acquire = func(context.Context, hold.Hold) error { return nil }
			k.Verify = hold.VerifyEach(k.Acquire)
		}
	})
}

// A running pod asks for another network that is to lead its default route. The former one, which has not given the route back yet, would put
// back what it once put aside over the new one's: the new one waits. The pod's first default route comes back with the last of them.
func TestDefaultRouteHandedOver(t *testing.T) {
	lead := func(name, ifname string) string {
		return fmt.Sprintf(`{"name":%q,"interface":%q,"default-route":["169.254.1.1"]}`, name, ifname)
	}
	leads := func(t *testing.T, at *ns.Netns, ifname string) {
		t.Helper()
		routes := nettest.Snapshot(t, at).Only("route").String()
		for _, name := range []string{"eth0", "net1", "web"} {
			if strings.Contains(routes, "default dev "+name+" via 169.254.1.1 table 254 ") != (name == ifname) {
				t.Errorf("want a default route by %s alone; the pod has\n%s", ifname, routes)
			}
		}
	}
	for _, test := range []struct {
		about, beside string
		hold          func(stuck *atomic.Bool, p *halted)
		free          func(stuck *atomic.Bool, p *halted)
	}{
		{"its release fails", "",
			func(stuck *atomic.Bool, _ *halted) { stuck.Store(true) }, func(stuck *atomic.Bool, _ *halted) { stuck.Store(false) }},
		{"it waits for a plugin", `,{"name":"slow","interface":"net2"}`,
			func(*atomic.Bool, *halted) {}, func(_ *atomic.Bool, p *halted) { close(p.goOn) }},
	} {
		t.Run(test.about, func(t *testing.T) {
			var stuck atomic.Bool
			n := startPlugging(t, nil, sticks(&stuck, true))
			defer func() { n.stop() }()
			p := &halted{goOn: make(chan struct{})}
			n.node.Delegates.Exec = p
			n.define("slow", `{"cniVersion":"1.1.0","type":"slow"}`)
			at := nettest.Pod(t)
			n.pod("web", "u1", "["+lead("a", "net1")+test.beside+"]")
			n.add(podRequest("web", "u1", "c1", at))
			leads(t, at, "net1")
			test.hold(&stuck, p)
			if err := n.asks(soon(t), "["+lead("b", "web")+"]"); err == nil {
				t.Error("the new network is there before the former one has given back the default route")
			}
			test.free(&stuck, p)
			n.core.Engine.Retry()
			must(t, n.asks(t.Context(), "["+lead("b", "web")+"]"))
			n.has(at, "eth0", "web")
			nettest.Eventually(t, "the former ones to be gone", func() bool { return len(n.index.All()) == 2 })
			leads(t, at, "web")
			must(t, n.asks(t.Context(), ""))
			n.has(at, "eth0")
			nettest.Eventually(t, "the last one to be gone", func() bool { return len(n.index.All()) == 1 })
			leads(t, at, "eth0")
			n.del("c1", true)
		})
	}
}

// halted are plugins, in memory, whose DEL waits.
type halted struct {
	otherPlugins
	goOn chan struct{}
}

func (p *halted) ExecPlugin(ctx context.Context, path string, in []byte, environ []string) ([]byte, error) {
	if slices.Contains(environ, "CNI_COMMAND=DEL") {
		select {
		case <-p.goOn:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return p.otherPlugins.ExecPlugin(ctx, path, in, environ)
}

// A network of other plugins leaves, and still owes something else, when another one takes its place in the pod. The next agent does not
// execute the former one's DEL once more: it would delete the new one's interface. So it is with a default route that is given back.
func TestNotReleasedTwice(t *testing.T) {
	var stuck atomic.Bool
	p := new(stubborn)
	n := startPlugging(t, p, sticks(&stuck, false))
	defer func() { n.stop() }()
	n.define("first", `{"cniVersion":"1.1.0","type":"first"}`)
	n.define("second", `{"cniVersion":"1.1.0","type":"second"}`)
	lead := func(name string) string {
		return `[{"name":"` + name + `","interface":"net1","default-route":["10.0.0.1"]}]`
	}
	n.pod("web", "u1", lead("first"))
	n.add(podRequest("web", "u1", "c1", nettest.Pod(t)))
	former := n.further("c1")
	again := func() {
		t.Helper()
		n.startAgain()
		must(t, n.core.Engine.Tried(t.Context(), former))
	}

	stuck.Store(true)
	must(t, n.asks(t.Context(), "second@net1"))
	p.ran(t, "first ADD c1 net1", "first DEL c1 net1", "second ADD c1 net1")
	again()
	p.ran(t)
	stuck.Store(false)
	n.core.Engine.Retry()
	must(t, n.core.Engine.Wait(t.Context(), former), n.asks(t.Context(), lead("first")))
	p.ran(t, "second DEL c1 net1", "first ADD c1 net1")

	former = n.further("c1")
	p.fails.Store("first DEL")
	must(t, n.asks(t.Context(), `[{"name":"second","interface":"web","default-route":["10.0.0.1"]}]`))
	stuck.Store(true) // a default route that is given back now fails
	again()
	if owed := n.core.Engine.Owed(former); len(owed) != 1 || owed[0].Hold.Spec.Kind() == podgateway.KindName {
		t.Errorf("the next agent owes %v", owed)
	}
	stuck.Store(false)
	p.fails.Store("")
	n.core.Engine.Retry()
	n.del("c1", true)
}

// A container that starts again, in another network namespace, waits for the plugins' DEL of its former networks: plugins know a container's
// network by names alone, and would take the new one's things. So it is with two definitions of one network's name.
func TestOwedElsewhere(t *testing.T) {
	p := new(stubborn)
	n := startPlugging(t, p, nil)
	defer func() { n.stop() }()
	for _, name := range []string{"one", "two"} {
		n.define(name, `{"cniVersion":"1.1.0","name":"same","type":"p"}`)
	}
	n.define("lent", `{"cniVersion":"1.1.0","name":"same","type":"berth-cni","ipam":{"type":"p"}}`)
	others := `"delegates":[{"cniVersion":"1.1.0","name":"others","type":"p"}]`
	for i, test := range []struct {
		keys          []string
		before, after string // what the pod asks for
		ifname, says  string
	}{
		{[]string{others}, "", "", "eth0", "plugins of network others"},
		{nil, "one", "two", "net1", "plugins of network same"},
		{nil, "one", "lent", "net1", "plugins of network same"},
	} {
		container, uid := fmt.Sprintf("c%d", i), fmt.Sprintf("u%d", i)
		pod := func(asks string) api.AddRequest {
			n.pod(uid, uid, asks)
			nettest.Eventually(t, "the agent to know it", func() bool {
				nets, _, err := n.networks.Cluster.Asks(t.Context(), &api.Pod{Namespace: "default", Name: uid, UID: uid})
				return err == nil && nets == asks
			})
			req := request(container, nettest.Pod(t), test.keys...)
			req.Args = podRequest(uid, uid, container, nettest.Pod(t)).Args
			return req
		}
		n.add(pod(test.before))
		p.fails.Store("p DEL")
		n.del(container, false)
		_, err := n.tryAddUntil(soon(t), pod(test.after))
		wantError(t, err, 11, test.says)
		name := " " + container + " " + test.ifname
		p.ran(t, "p ADD"+name, "p DEL"+name+" fails")
		p.fails.Store("")
		n.core.Engine.Retry()
		if test.after == "lent" { // this plugin gives no address
			nettest.Eventually(t, "all to be gone", func() bool { return len(n.index.Container(container)) == 0 })
			continue
		}
		n.add(pod(test.after))
		n.del(container, true)
		p.mu.Lock()
		if want := []string{"p DEL" + name, "p ADD" + name, "p DEL" + name}; len(p.runs) < 3 || !slices.Equal(p.runs[len(p.runs)-3:], want) {
			t.Errorf("executed %q, want %q at last", p.runs, want)
		}
		p.runs = nil
		p.mu.Unlock()
	}
}

// unpromising is a ledger that writes no promise of a release while it fails.
type unpromising struct {
	engine.Ledger
	fails atomic.Bool
}

func (l *unpromising) Commit(ctx context.Context, ops ...ledger.Op) error {
	for _, op := range ops {
		if l.fails.Load() && fmt.Sprintf("%T", op) == "ledger.releasing" {
			return errors.New("no promise can be written")
		}
	}
	return l.Ledger.Commit(ctx, ops...)
}

// A running pod's network fails, and nobody can promise its release. Whoever tries again has it released first: the late release would take the new
// network's interface.
func TestDoomedNetwork(t *testing.T) {
	p := new(stubborn)
	l := new(unpromising)
	n := startPlugging(t, p, func(of engine.Ledger, ks hold.Kinds) (engine.Ledger, hold.Kinds) {
		l.Ledger = of
		_, ks = sticks(new(atomic.Bool), false)(of, ks)
		return l, ks
	})
	defer func() { n.stop() }()
	n.define("plugged", `{"cniVersion":"1.1.0","type":"p"}`)
	n.pod("web", "u1", "")
	n.add(podRequest("web", "u1", "c1", nettest.Pod(t)))
	for _, asks := range []string{"plugged", `[{"name":"plugged","default-route":["10.0.0.1"]}]`} {
		p.fails.Store("p ADD")
		l.fails.Store(true)
		if err := n.asks(t.Context(), asks); err == nil {
			t.Errorf("%s: a plugin that fails makes a network", asks)
		}
		p.ran(t, "p ADD c1 net1 fails")
		p.fails.Store("")
		if err := n.asks(t.Context(), asks); err == nil || !strings.Contains(err.Error(), "no promise can be written") {
			t.Errorf("%s: the network is made again, and the former one goes later: %v", asks, err)
		}
		p.ran(t)
		l.fails.Store(false)
		must(t, n.asks(t.Context(), asks))
		p.ran(t, "p DEL c1 net1", "p ADD c1 net1")
		nettest.Eventually(t, "the former one to be gone", func() bool { return len(n.index.All()) == 2 })
		p.ran(t)
		must(t, n.asks(t.Context(), ""))
		nettest.Eventually(t, "the network to be gone", func() bool { return len(n.index.All()) == 1 })
		p.ran(t, "p DEL c1 net1")
	}
	n.del("c1", true)
}
