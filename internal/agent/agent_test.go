package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/boottime"
	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/daemon/server"
	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/node"
	"github.com/berth-net/berth/internal/root"
)

func TestMain(m *testing.M) { nettest.Main(m) }

var must = nettest.Must

// rig is a node of one test: a root folder and an agent that can be started
// again on it.
type rig struct {
	*Agent
	t        testing.TB
	root     root.Dir
	pools    []string
	cooldown time.Duration
	observe  func(kind, op string, took time.Duration, holds int, err error)
	decorate func(engine.Ledger, hold.Kinds) (engine.Ledger, hold.Kinds)
	wire     func(name string, mtu int) error // makes WireGuard devices; nil: the kernel does
	plugins  invoke.Exec                      // of other CNI plugins; nil: berth-runner
	boots    int                              // how often the node was rebooted, for all that its agent knows
	booted   int64                            // CLOCK_BOOTTIME at the last such reboot, ns
}

func newRig(t testing.TB, pools ...string) *rig {
	t.Helper()
	nettest.Need(t)
	if len(pools) == 0 {
		pools = []string{"default=10.88.0.0/24,fd00:88::/64"}
	}
	return &rig{t: t, root: root.Dir(nettest.Memory(t)), pools: pools}
}

func start(t testing.TB, pools ...string) *rig {
	t.Helper()
	r := newRig(t, pools...)
	r.begin()
	return r
}

// begin starts the rig's agent. When the test ends, begin deletes all pods and removes the agent,
// which must leave nothing on the node.
func (r *rig) begin() {
	t := r.t
	t.Helper()
	before := nettest.Snapshot(t, nil).Without("sysctl")
	r.bringUp()
	t.Cleanup(func() {
		r.releaseAll()
		if err := r.remove(context.Background()); err != nil {
			t.Errorf("removing: %v", err)
		}
		r.close()
		nettest.Same(t, before, nettest.Snapshot(t, nil).Without("sysctl"), "residue")
	})
}

func (r *rig) conf() (*config.Config, error) {
	c, err := config.Load(r.root, config.Flags{Pools: r.pools})
	if err == nil {
		for i := range c.Pools {
			c.Pools[i].Cooldown = r.cooldown
		}
	}
	return c, err
}

func (r *rig) open() error {
	o, err := r.options()
	if err != nil {
		return err
	}
	a, err := open(o, r.kernel, false)
	if err == nil {
		r.Agent = a
		if r.plugins != nil {
			a.node.Delegates.Exec = r.plugins
		}
	}
	return err
}

// kernel opens the kernel as Open does, in the rig's own boot after a reboot.
func (r *rig) kernel() (*node.Node, error) {
	n, err := node.Open()
	if err == nil && r.wire != nil {
		equip := n.Equip
		n.Equip = func(n *node.Node, h node.Hooks) error {
			h.WireGuard = r.wire
			return equip(n, h)
		}
	}
	if booted := r.booted; err == nil && r.boots > 0 {
		n.Boot = fmt.Sprintf("boot-%d", r.boots)
		n.Boottime = func() int64 { return boottime.Now() - booted }
	}
	return n, err
}

// began returns when the first agent of the rig began.
func (r *rig) began() int64 {
	r.t.Helper()
	first, known := r.core.Ledger.First()
	if !known {
		r.t.Fatal("the ledger does not know when the first agent began")
	}
	return first.Started
}

// now is the time of a new request, in the rig's boot.
func (r *rig) now() server.When {
	t := r.node.Boottime()
	return server.When{Started: t, Deadline: t + int64(time.Minute)}
}

// options returns the options with which the rig opens its agent.
func (r *rig) options() (Options, error) {
	c, err := r.conf()
	level := slog.LevelWarn
	if !testing.Verbose() {
		level = slog.LevelError
	}
	return Options{
		Config: c, Version: "test",
		Options: daemon.Options{
			Root: r.root, Decorate: r.decorate, Observe: r.observe,
			Log: slog.New(slog.NewTextHandler(r.t.Output(), &slog.HandlerOptions{Level: level})),
		},
	}, err
}

func (r *rig) close() {
	if err := r.Agent.Close(); err != nil {
		r.t.Errorf("closing: %v", err)
	}
}

func (r *rig) restart() {
	r.t.Helper()
	r.close()
	r.bringUp()
}

// bringUp opens the rig's agent and has it restore what its ledger says.
func (r *rig) bringUp() {
	r.t.Helper()
	must(r.t, r.open())
	must(r.t, r.Restore(r.t.Context()))
}

// releaseAll deletes every attachment, trying again as a runtime does.
func (r *rig) releaseAll() {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for _, e := range r.index.All() {
		var err error
		for range 3 {
			if _, _, err = r.DeleteOne(ctx, e.Owner.ID, true, now()); err == nil {
				break
			}
		}
		if err != nil {
			r.t.Errorf("deleting %s: %v", e.Owner.ID, err)
		}
	}
	if left := r.index.All(); len(left) > 0 {
		r.t.Errorf("%d attachments are left; owed: %v", len(left), r.core.Engine.Owed(""))
	}
}

func now() server.When {
	t := boottime.Now()
	return server.When{Started: t, Deadline: t + int64(time.Minute)}
}

// request is an ADD of a container's eth0 into a pod.
func request(container string, pod *ns.Netns, keys ...string) api.AddRequest {
	conf := `{"cniVersion":"1.1.0","name":"net","type":"berth-cni"` + strings.Join(append([]string{""}, keys...), ",") + `}`
	return api.AddRequest{ContainerID: container, Ifname: "eth0", Netns: api.Netns(pod.Ref()), Config: json.RawMessage(conf)}
}

func (r *rig) add(req api.AddRequest) *types100.Result {
	r.t.Helper()
	res, err := r.tryAdd(req)
	if err != nil {
		r.t.Fatalf("ADD of %s: %v", req.ContainerID, err)
	}
	return res
}

func (r *rig) tryAdd(req api.AddRequest) (*types100.Result, error) {
	return r.tryAddUntil(r.t.Context(), req)
}

func (r *rig) tryAddUntil(ctx context.Context, req api.AddRequest) (*types100.Result, error) {
	raw, err := r.Add(ctx, req, now())
	if err != nil {
		return nil, err
	}
	var res types100.Result
	return &res, json.Unmarshal(raw, &res)
}

func key(container string) api.Filter {
	return api.Filter{Network: "net", Container: container, Ifname: "eth0"}
}

func (r *rig) del(container string, wait bool) bool {
	r.t.Helper()
	_, known, err := r.Delete(r.t.Context(), key(container), wait, now())
	if err != nil {
		r.t.Fatalf("DEL of %s: %v", container, err)
	}
	return known
}

func (r *rig) wantClean() {
	r.t.Helper()
	a, err := r.Audit(r.t.Context())
	if err != nil || len(a.Findings) > 0 {
		r.t.Errorf("audit: %v %+v", err, a.Findings)
	}
}

// wantError checks an error's CNI code and a part of its text.
func wantError(t testing.TB, err error, code uint, part string) {
	t.Helper()
	var e *api.Error
	if !errors.As(err, &e) || e.Code != code || !strings.Contains(e.Error(), part) {
		t.Errorf("error %v, want code %d with %q", err, code, part)
	}
}

func addresses(res *types100.Result) []netip.Addr {
	var as []netip.Addr
	for _, ip := range res.IPs {
		a, _ := netip.AddrFromSlice(ip.Address.IP)
		as = append(as, a.Unmap())
	}
	return as
}

func TestPodsReachEachOtherAndLeaveNothing(t *testing.T) {
	for _, pools := range []string{"default=10.88.0.0/24", "default=fd00:88::/64", "default=10.88.0.0/24,fd00:88::/64"} {
		t.Run(pools, func(t *testing.T) {
			r := start(t, pools)
			a, b := nettest.Pod(t), nettest.Pod(t)
			empty := nettest.Snapshot(t, nil).Without("sysctl", "conntrack")
			r.add(request("a", a))
			res := r.add(request("b", b))
			for _, to := range addresses(res) {
				nettest.Ping(t, a, to)
			}
			r.wantClean()
			r.del("a", true)
			r.del("b", true)
			nettest.Same(t, empty, nettest.Snapshot(t, nil).Without("sysctl", "conntrack"), "left on the node")
			if links := nettest.Snapshot(t, a).Only("link").String(); strings.Contains(links, "eth0") {
				t.Errorf("left in the pod:\n%s", links)
			}
		})
	}
}

func TestRepeatedAdd(t *testing.T) {
	r := start(t)
	pod, other := nettest.Pod(t), nettest.Pod(t)
	first := r.add(request("c", pod))
	if again := r.add(request("c", pod)); fmt.Sprint(addresses(again)) != fmt.Sprint(addresses(first)) || again.Interfaces[0].Name != first.Interfaces[0].Name {
		t.Errorf("repeated ADD answers %v, first %v", again, first)
	}
	moved := r.add(request("c", other))
	if moved.Interfaces[0].Name == first.Interfaces[0].Name {
		t.Error("ADD into another netns answers the old incarnation")
	}
	nettest.Eventually(t, "the old incarnation is gone", func() bool { return len(r.index.All()) == 1 })
	r.wantClean()
}

func TestDelThenAddInTheSameNetns(t *testing.T) {
	r := start(t)
	pod := nettest.Pod(t)
	for range 5 {
		r.add(request("c", pod))
		r.del("c", false) // the link may still be there
	}
	res := r.add(request("c2", pod))
	nettest.Ping(t, pod, addresses(r.add(request("d", nettest.Pod(t))))[0])
	_ = res
}

func TestDelIsIdempotentAndNeedsNoNetns(t *testing.T) {
	r := start(t)
	pod := nettest.Pod(t)
	if r.del("never", false) {
		t.Error("DEL of what was never added says that it is known")
	}
	r.add(request("c", pod))
	nettest.Delete(t, pod)
	r.del("c", true)
	r.del("c", true)
	r.wantClean()
}

func TestLateAddIsRefused(t *testing.T) {
	r := start(t)
	pod := nettest.Pod(t)
	early := now() // an ADD that begins, and whose client then dies
	r.del("c", false)
	_, err := r.Add(t.Context(), request("c", pod), early)
	wantError(t, err, 11, "deleted")
	if len(r.index.All()) != 0 {
		t.Error("the late ADD left something")
	}
	r.add(request("c", pod)) // a new one is not late
}

func TestLateDelSparesTheSuccessor(t *testing.T) {
	r := start(t)
	pod := nettest.Pod(t)
	late := now()
	r.add(request("c", pod))
	if _, known, err := r.Delete(t.Context(), key("c"), true, late); known || err != nil {
		t.Errorf("late DEL: known %t, %v", known, err)
	}
	if len(r.List(key("c"))) != 1 {
		t.Error("a DEL from before the ADD deleted it")
	}
	r.wantClean()
}

// A DEL that names a key, and beside it an address, a pod or a uid that is not the attachment's,
// releases nothing, also if the DEL names the attachment's link.
func TestDelOfSomebodyElseWithTheKey(t *testing.T) {
	r := start(t)
	pod := nettest.Pod(t)
	kept := now()
	req := request("c", pod)
	req.Args = "K8S_POD_NAMESPACE=default;K8S_POD_NAME=web;K8S_POD_UID=of-this-pod"
	r.add(req)
	link, addrs := r.linkOf("c")
	kept.Running = now().Started
	for _, f := range []api.Filter{
		{UID: "of-the-former-pod"}, {Namespace: "default", Pod: "other"}, {Address: "10.88.0.99"},
		{UID: "of-the-former-pod", Namespace: "default", Pod: "web", Address: addrs[0]},
	} {
		f.Network, f.Container, f.Ifname = "net", "c", "eth0"
		for _, f.Link = range []string{"", link} {
			for what, when := range map[string]server.When{"a new process": now(), "a process kept ready": kept} {
				if d, known, err := r.Delete(t.Context(), f, true, when); known || err != nil {
					t.Errorf("DEL of %+v by %s: %+v, known %t, %v", f, what, d, known, err)
				}
			}
		}
	}
	r.wantAttached("c")
	f := api.Filter{Network: "net", Container: "c", Ifname: "eth0", Link: link, UID: "of-this-pod", Namespace: "default", Pod: "web", Address: addrs[0]}
	_, _, err := r.Delete(t.Context(), f, true, kept)
	wantError(t, err, 11, "repeat DEL")
	if _, known, err := r.Delete(t.Context(), f, true, now()); !known || err != nil {
		t.Errorf("DEL of %+v: known %t, %v", f, known, err)
	}
	r.wantClean()
}

// A runtime keeps a process ready, attaches a pod, and then has the process become the plugin
// of the pod's DEL. The agent cannot tell whether this DEL was asked for before the ADD or
// after it, and so does not answer with a success that might be false. A DEL from a new process
// is certain.
func TestDelInAProcessKeptReady(t *testing.T) {
	r := start(t)
	pod := nettest.Pod(t)
	kept := now()
	r.add(request("c", pod))
	early := now() // another ADD, which is on its way
	kept.Running = now().Started
	_, _, err := r.Delete(t.Context(), key("c"), true, kept)
	wantError(t, err, 11, "before that process ran the plugin: repeat DEL")
	r.wantAttached("c")
	if !r.del("c", true) {
		t.Error("the DEL of a new process meets nobody")
	}
	kept.Running = 0
	if _, known, err := r.Delete(t.Context(), key("c"), true, kept); known || err != nil {
		t.Errorf("it is gone: known %t, %v", known, err)
	}
	if _, err := r.Add(t.Context(), request("c", pod), early); err == nil {
		t.Error("an ADD that began before a DEL is executed behind it")
	}
	r.wantClean()
}

// An ADD is on its way when a DEL comes from a process that is older than the ADD's process,
// and became the plugin later. There is no attachment yet that the DEL could spare, and the
// agent refuses the ADD.
func TestAddOnItsWayIsRefusedBehindAProcessKeptReady(t *testing.T) {
	r := start(t)
	kept, early := now(), now()
	kept.Running = now().Started
	if _, known, err := r.Delete(t.Context(), key("c"), false, kept); known || err != nil {
		t.Errorf("known %t, %v", known, err)
	}
	_, err := r.Add(t.Context(), request("c", nettest.Pod(t)), early)
	wantError(t, err, 11, "deleted")
	r.wantClean()
}

func TestRequestedAddressAndMAC(t *testing.T) {
	r := start(t)
	wish := `"capabilities":{"ips":true,"mac":true},"runtimeConfig":{"ips":["10.88.0.50/16","fd00:88::50"],"mac":"0a:00:00:00:00:05"},"mtu":1400`
	res := r.add(request("c", nettest.Pod(t), wish))
	if got := fmt.Sprint(addresses(res)); got != "[10.88.0.50 fd00:88::50]" {
		t.Errorf("addresses %s", got)
	}
	if i := res.Interfaces[1]; i.Mac != "0a:00:00:00:00:05" || i.Mtu != 1400 {
		t.Errorf("pod's interface: %+v", i)
	}
	_, err := r.tryAdd(request("d", nettest.Pod(t), wish))
	wantError(t, err, 101, "10.88.0.50")
	_, err = r.tryAdd(request("d", nettest.Pod(t), `"runtimeConfig":{"ips":["192.0.2.1"]}`))
	wantError(t, err, 101, "not in the pool")
	r.wantClean()
}

// The agent does not answer with the standing attachment if an ADD asks for something else. The
// agent answers with it if the ADD asks for a part of what the attachment has, or if only the
// configuration has changed meanwhile.
func TestRepeatedAddWithOtherWishes(t *testing.T) {
	r := start(t)
	pod := nettest.Pod(t)
	first := r.add(request("c", pod, `"runtimeConfig":{"ips":["10.88.0.50","fd00:88::50"],"mac":"0a:00:00:00:00:05"}`))
	for wish, says := range map[string]string{
		`"runtimeConfig":{"ips":["10.88.0.51"]}`:           "asks for address 10.88.0.51",
		`"runtimeConfig":{"ips":["10.88.0.50","fd00::1"]}`: "asks for address fd00::1",
		`"runtimeConfig":{"mac":"0a:00:00:00:00:06"}`:      "asks for MAC 0a:00:00:00:00:06",
	} {
		_, err := r.tryAdd(request("c", pod, wish))
		wantError(t, err, 7, says)
	}
	for _, wish := range []string{`"runtimeConfig":{"ips":["10.88.0.50/16"]}`, `"runtimeConfig":{"mac":"0A:00:00:00:00:05"}`, `"mtu":1400`, `"pool":"gone"`} {
		if again := r.add(request("c", pod, wish)); told(again) != told(first) {
			t.Errorf("with %s the ADD again answers %s, and at first %s", wish, told(again), told(first))
		}
	}
	r.wantClean()
}

func TestAddressesRest(t *testing.T) {
	r := newRig(t, "default=10.88.0.0/29")
	r.cooldown = time.Hour
	r.begin()
	seen := map[netip.Addr]bool{}
	pod := nettest.Pod(t)
	for i := range 6 {
		if i == 3 {
			r.restart() // cooldown is persisted
		}
		a := addresses(r.add(request("c", pod)))[0]
		if seen[a] {
			t.Errorf("%s was given again within its cooldown", a)
		}
		seen[a] = true
		r.del("c", true)
	}
	_, err := r.tryAdd(request("c", pod))
	wantError(t, err, 100, "0 in use, 6 in cooldown")
	st, err := r.Status(t.Context(), "")
	if err != nil || !strings.Contains(st.Pools[0].Exhausted, "6 in cooldown") {
		t.Errorf("STATUS: %v, %+v", err, st.Pools)
	}
}

func TestGC(t *testing.T) {
	r := start(t)
	for _, c := range []string{"a", "b", "c"} {
		r.add(request(c, nettest.Pod(t)))
	}
	other := request("a", nettest.Pod(t))
	other.Config = json.RawMessage(strings.Replace(string(other.Config), `"net"`, `"other"`, 1))
	r.add(other)
	d, err := r.GC(t.Context(), api.GCRequest{Network: "net", Valid: []api.GCValid{{ContainerID: "b", Ifname: "eth0"}}}, now())
	if err != nil || d.Released != 2 {
		t.Fatalf("GC: %+v %v", d, err)
	}
	nettest.Eventually(t, "two attachments are gone", func() bool { return len(r.index.All()) == 2 })
	for _, at := range r.List(api.Filter{}) {
		if at.ContainerID != "b" && at.Network != "other" {
			t.Errorf("left: %+v", at)
		}
	}
	r.wantClean()
}

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		name, damage string
		code         uint
		says         string
	}{
		{name: "well"},
		{"pod's address", "pod ip addr del 10.88.0.1/32 dev eth0", 103, "10.88.0.1"},
		{"pod's route", "pod ip route del default", 103, "0.0.0.0/0"},
		{"pod's neighbour", "pod ip neigh del 169.254.1.1 dev eth0", 103, "169.254.1.1"},
		{"pod's MTU", "pod ip link set eth0 mtu 1300", 103, "1300"},
		{"pod's link down", "pod ip link set eth0 down", 103, "down"},
		{"host's route", "host ip route del 10.88.0.1", 103, "10.88.0.1"},
		{"host's link down", "host ip link set HOST down", 103, "down"},
		{"link", "pod ip link del eth0", 103, "gone"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := start(t)
			pod := nettest.Pod(t)
			raw, err := r.Add(t.Context(), request("c", pod), now())
			must(t, err)
			at, command, _ := strings.Cut(c.damage, " ")
			command = strings.Replace(command, "HOST", r.List(api.Filter{})[0].HostVeth, 1)
			switch at {
			case "pod":
				nettest.Run(t, pod, command)
			case "host":
				nettest.Run(t, r.node.Here, command)
			}
			err = r.Check(t.Context(), request("c", pod, `"prevResult":`+string(raw)), now())
			if c.code == 0 && err != nil {
				t.Errorf("CHECK: %v", err)
			}
			if c.code != 0 {
				wantError(t, err, c.code, c.says)
			}
		})
	}
}

func TestCheckNeedsAnAttachmentAndItsResult(t *testing.T) {
	r := start(t)
	pod := nettest.Pod(t)
	wantError(t, r.Check(t.Context(), request("c", pod), now()), 7, "prevResult")
	raw, err := r.Add(t.Context(), request("c", pod), now())
	must(t, err)
	r.del("c", true)
	wantError(t, r.Check(t.Context(), request("c", pod, `"prevResult":`+string(raw)), now()), 3, "not attached")
}

func TestBadInput(t *testing.T) {
	r := start(t)
	pod := nettest.Pod(t)
	change := func(f func(*api.AddRequest)) api.AddRequest {
		req := request("c", pod)
		f(&req)
		return req
	}
	regular := t.TempDir() + "/file"
	must(t, os.WriteFile(regular, nil, 0o600))
	before := nettest.Snapshot(t, nil)
	for _, c := range []struct {
		name string
		req  api.AddRequest
		code uint
		says string
	}{
		{"container id", change(func(q *api.AddRequest) { q.ContainerID = "../x" }), 4, "CNI_CONTAINERID"},
		{"long container id", change(func(q *api.AddRequest) { q.ContainerID = strings.Repeat("c", 129) }), 4, "128"},
		{"ifname", change(func(q *api.AddRequest) { q.Ifname = "a/b" }), 4, "CNI_IFNAME"},
		{"a blank of the kernel's", change(func(q *api.AddRequest) { q.Ifname = "à" }), 4, "CNI_IFNAME"},
		{"args", change(func(q *api.AddRequest) { q.Args = "K8S_POD_NAMESPACE=a;WHAT=1" }), 4, "WHAT"},
		{"config", change(func(q *api.AddRequest) { q.Config = json.RawMessage(`{"name":"net"`) }), 6, ""},
		{"key", request("c", pod, `"flavour":1`), 2, "flavour"},
		{"pool", request("c", pod, `"pool":"none"`), 7, "default"},
		{"MTU", request("c", pod, `"mtu":1000`), 7, "1280"},
		{"version", change(func(q *api.AddRequest) { q.Config = json.RawMessage(`{"cniVersion":"9.0.0","name":"net","type":"x"}`) }), 1, "9.0.0"},
		{"netns path", change(func(q *api.AddRequest) { q.Netns.Path = "relative" }), 4, "CNI_NETNS"},
		{"no netns", change(func(q *api.AddRequest) { q.Netns.Path = regular }), 102, "not a network namespace"},
		{"netns gone", change(func(q *api.AddRequest) { q.Netns.Path = "/run/netns/none" }), 102, "none"},
		{"another netns", change(func(q *api.AddRequest) { q.Netns.Ino++ }), 102, ""},
		{"the node's netns", change(func(q *api.AddRequest) {
			self := r.node.Netns
			self.Path = "/proc/self/ns/net"
			q.Netns = api.Netns(self)
		}), 102, "node's own"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := r.tryAdd(c.req)
			wantError(t, err, c.code, c.says)
		})
	}
	if n := len(r.index.All()); n > 0 {
		t.Errorf("%d attachments", n)
	}
	nettest.Same(t, before, nettest.Snapshot(t, nil), "bad input changed")
}

// A pod already has an interface of the ADD's name, made by another program. The refused ADD
// costs no address. If the ADD's key has an attachment in another pod, the agent keeps that
// attachment, unless the interface appears at the last moment.
func TestTakenIfname(t *testing.T) {
	r := newRig(t)
	r.cooldown = time.Hour
	r.begin()
	pod := nettest.Pod(t)
	r.add(request("c", nettest.Pod(t)))
	nettest.Run(t, pod, "ip link add eth0 type veth peer name other")
	before := nettest.Snapshot(t, pod)
	refused := func(container string) {
		t.Helper()
		_, err := r.tryAdd(request(container, pod))
		wantError(t, err, 101, "eth0")
		nettest.Same(t, before, nettest.Snapshot(t, pod), "the failed ADD changed the pod")
	}
	refused("c")
	refused("d")
	r.wantAttached("c")
	if resting := r.core.Ledger.Resting(); len(resting) > 0 {
		t.Errorf("addresses that nobody had rest: %v", resting)
	}
	r.opens(func(ref ns.Ref) (ns.Handle, error) {
		n, err := r.node.OpenNetns(ref)
		return notYet{n}, err
	})
	refused("d")
	r.wantGone("d")
	r.wantAttached("c")
	r.wantClean()
}

// notYet is a network namespace in which somebody is about to make a link of each name.
type notYet struct{ ns.Handle }

func (notYet) HasLink(string) (bool, error) { return false, nil }

func TestPoolsDrain(t *testing.T) {
	r := start(t, "default=10.88.0.0/24", "extra=10.89.0.0/24")
	r.add(request("c", nettest.Pod(t), `"pool":"extra"`))
	r.pools = []string{"default=10.88.0.0/24"}
	reload := func() {
		c, err := r.conf()
		if err == nil {
			err = r.ground.Reload(t.Context(), c)
		}
		must(t, err)
	}
	reload()
	if routes := nettest.Snapshot(t, nil).Only("route").String(); !strings.Contains(routes, "10.89.0.0/24") {
		t.Error("the route of a CIDR in use vanished")
	}
	r.restart()
	if pools := r.Pools(); len(pools) != 2 || !pools[1].CIDRs[0].Draining {
		t.Errorf("pools after a restart: %+v", pools)
	}
	_, err := r.tryAdd(request("d", nettest.Pod(t), `"pool":"extra"`))
	wantError(t, err, 7, "extra")
	r.del("c", true)
	r.Sweep(t.Context())
	nettest.Eventually(t, "the drained CIDR is given back", func() bool {
		return !strings.Contains(nettest.Snapshot(t, nil).Only("route").String(), "10.89.0.0/24")
	})
	if pools := r.Pools(); len(pools) != 1 {
		t.Errorf("pools after draining: %+v", pools)
	}
}

// A pool was taken out of the configuration. The ledger says how long the pool's addresses
// rest: as long as the pool last said. A ledger of an older version does not say it: then the
// addresses rest for the default time, whatever the remaining pools say.
func TestCooldownOfADrainingPool(t *testing.T) {
	const both, one = "default=10.88.0.0/24 extra=10.89.0.0/24", "default=10.88.0.0/24"
	r := start(t, strings.Fields(both)...)
	turn := func(pools string, cooldown time.Duration) {
		t.Helper()
		r.pools, r.cooldown = strings.Fields(pools), cooldown
		c, err := r.conf()
		must(t, errors.Join(err, r.ground.Reload(t.Context(), c)))
	}
	rests := func(when string, want time.Duration) {
		t.Helper()
		if got := r.ground.Rest(ipam.Name(netip.MustParseAddr("10.89.0.1"))); got != want {
			t.Errorf("%s: %s, want %s", when, got, want)
		}
	}
	r.add(request("c", nettest.Pod(t), `"pool":"extra"`))
	turn(both, time.Hour)
	turn(one, time.Millisecond)
	rests("taken out", time.Hour)
	r.restart()
	rests("after a restart", time.Hour)
	for _, held := range r.core.Ledger.Owners() {
		if len(held.NamesIn("cidr")) > 0 {
			must(t, r.core.Ledger.Commit(t.Context(), ledger.Update(held.ID, func(o *hold.Owner) error {
				o.Meta = json.RawMessage(`{"sort":"pool","pool":"extra"}`)
				return nil
			})))
		}
	}
	r.restart()
	rests("with an older ledger", config.DefaultCooldown)
	turn(both, time.Minute)
	rests("it is back", time.Minute)
	r.pools = strings.Fields(one)
	r.restart()
	rests("taken out by a restart", time.Minute)
}

func TestRestartKeepsPodsAndFinishesDeletions(t *testing.T) {
	r := start(t)
	a, b := nettest.Pod(t), nettest.Pod(t)
	res := r.add(request("a", a))
	r.add(request("b", b))
	r.restart()
	nettest.Ping(t, b, addresses(res)[0])
	nettest.Delete(t, b) // the pod goes while nobody looks
	nettest.Eventually(t, "the pod's link is gone", func() bool {
		return strings.Count(nettest.Snapshot(t, nil).Only("link").String(), "veth") == 1
	})
	r.restart()
	nettest.Eventually(t, "the pod that is gone is released", func() bool { return len(r.index.All()) == 1 })
	r.wantClean()
}
