package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kinds/link"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/rebuild"
	"github.com/berth-net/berth/internal/root"
)

// rebuild is `berthd --rebuild-ledger`.
func (r *rig) rebuild() (*rebuild.Rebuilt, error) {
	r.t.Helper()
	o, err := r.options()
	must(r.t, err)
	return RebuildLedger(r.t.Context(), o)
}

// The ledger is gone, or damaged, while pods are attached. The agent refuses to start. With a
// rebuilt ledger the agent knows the pods again: it lists, checks and deletes them, and no other pod
// gets their addresses. The pods can be reached all the time.
func TestRebuild(t *testing.T) {
	for name, lose := range map[string]func(*rig){
		"lost":    func(r *rig) { r.lose(false) },
		"empty":   func(r *rig) { r.lose(false); os.WriteFile(r.root.Ledger(), nil, 0o600) },
		"damaged": func(r *rig) { r.close(); damage(r.t, r.root) },
	} {
		t.Run(name, func(t *testing.T) { testRebuild(t, lose) })
	}
}

func testRebuild(t *testing.T, lose func(*rig)) {
	nettest.Program(t, "ip") // a skip has to come here: no agent could clean up once its ledger is lost
	r := start(t)
	r.cooldown = time.Hour
	r.restart()
	a, b, c := nettest.Pod(t), nettest.Pod(t), nettest.Pod(t)
	reqA := request("a", a, `"runtimeConfig":{"mac":"02:aa:bb:cc:dd:ee"}`, `"mtu":1400`)
	resA, resB := r.add(reqA), r.add(request("b", b))
	r.add(request("c", c))
	r.add(request("down", nettest.Pod(t)))
	linkC, _ := r.linkOf("c")
	linkDown, _ := r.linkOf("down")
	want := r.List(api.Filter{})
	low, _ := r.node.Groups.Dying()
	lose(r)
	nettest.Run(r.t, r.node.Here, "ip link set "+linkC+" group "+fmt.Sprint(low)) // cut off before its ledger was lost
	nettest.Run(r.t, r.node.Here, "ip link set "+linkDown+" down")                // and with it its routes

	if err := r.open(); !errors.Is(err, rebuild.ErrLedgerLost) || !strings.Contains(err.Error(), "links on the node (4") || !strings.Contains(err.Error(), "--rebuild-ledger") {
		t.Fatalf("a start over a lost ledger: %v", err)
	}
	reach(t, a, resB)
	made, err := r.rebuild()
	must(t, err)
	reach(t, a, resB)
	if len(made.Pods) != 4 || time.Until(made.Until) < 59*time.Minute {
		t.Errorf("rebuilt: %+v", made)
	}
	for _, p := range made.Pods {
		if len(p.Lost) > 0 || p.Record.Pool != "default" {
			t.Errorf("lost of %s: %v; pool %q", p.Record.Key, p.Lost, p.Record.Pool)
		}
	}
	if _, err := r.rebuild(); err == nil || !strings.Contains(err.Error(), "intact") {
		t.Errorf("rebuilding an intact one: %v", err)
	}
	r.bringUp()
	if _, err := r.rebuild(); err == nil {
		t.Error("rebuilt under an agent that runs")
	}
	r.wantGone("c")
	for _, w := range want {
		if w.ContainerID == "c" {
			continue
		}
		have := r.List(key(w.ContainerID))
		if len(have) != 1 {
			t.Errorf("%s: %+v", w.ContainerID, have)
			continue
		}
		have[0].Created = w.Created
		if x, y := asJSON(have[0]), asJSON(w); x != y {
			t.Errorf("adopted is\n%s\nwas\n%s", x, y)
		}
	}
	reach(t, a, resB)
	reach(t, b, resA)
	for i := range 2 { // within the cooldown, also after a restart
		_, err = r.tryAdd(request("d", nettest.Pod(t)))
		wantError(t, err, 100, "the ledger was lost")
		st, err := r.Status(t.Context(), "")
		if err != nil || !strings.Contains(st.Pools[0].Exhausted, "the ledger was lost") {
			t.Errorf("STATUS: %v, %+v", err, st.Pools)
		}
		if i == 0 {
			r.restart()
		}
	}
	r.wantClean()
	check(t, r, reqA, resA)
	r.Sweep(t.Context())
	r.Sweep(t.Context())
	reach(t, a, resB)
	if _, err := r.GC(t.Context(), api.GCRequest{Network: "net", Valid: []api.GCValid{{ContainerID: "a", Ifname: "eth0"}, {ContainerID: "down", Ifname: "eth0"}}}, now()); err != nil {
		t.Error(err)
	}
	r.wantGone("b")
	if !r.del("a", true) || !r.del("down", true) {
		t.Error("an adopted attachment is unknown")
	}
	r.wantClean()
}

// check is a CHECK with the result of the ADD.
func check(t *testing.T, r *rig, req api.AddRequest, res any) {
	t.Helper()
	prev, err := json.Marshal(res)
	must(t, err)
	req.Config = json.RawMessage(strings.TrimSuffix(string(req.Config), "}") + `,"prevResult":` + string(prev) + "}")
	if err := r.Check(t.Context(), req, now()); err != nil {
		t.Errorf("CHECK: %v", err)
	}
}

func asJSON(v any) string {
	raw, _ := json.Marshal(v)
	return string(raw)
}

// damage changes bytes all over a ledger.
func damage(t testing.TB, dir root.Dir) {
	t.Helper()
	raw, err := os.ReadFile(dir.Ledger())
	must(t, err)
	for i := range raw {
		raw[i] ^= 0x55
	}
	must(t, os.WriteFile(dir.Ledger(), raw, 0o600))
	t.Cleanup(func() {
		if kept, _ := filepath.Glob(dir.Ledger() + ".damaged-*"); len(kept) != 1 {
			t.Errorf("kept: %v", kept)
		}
	})
}

// reach pings a pod at all of its addresses.
func reach(t *testing.T, from *ns.Netns, res *types100.Result) {
	t.Helper()
	for _, to := range addresses(res) {
		nettest.Ping(t, from, to)
	}
}

// A rebuild cannot find the network namespace of one pod, and the alias of another pod's link is
// gone. Both pods stay attached. CHECK looks for the first pod where the runtime says that it is.
func TestRebuildWithoutNetnsOrAlias(t *testing.T) {
	nettest.Program(t, "ip") // as in testRebuild
	r := start(t)
	a, b := nettest.Pod(t), nettest.Pod(t)
	req := request("a", a)
	res := r.add(req)
	r.add(request("b", b))
	linkA, _ := r.linkOf("a")
	linkB, addrsB := r.linkOf("b")
	r.lose(false)
	nettest.Run(r.t, r.node.Here, "ip link set "+linkB+" alias x")
	was := link.NetnsFolders
	link.NetnsFolders = nil
	t.Cleanup(func() { link.NetnsFolders = was })
	made, err := r.rebuild()
	must(t, err)
	for _, p := range made.Pods {
		want := "[network namespace]"
		if p.Record.ContainerID == "" {
			want = "[network, container, interface network namespace]"
		}
		if have := "[" + strings.Join(p.Lost, " ") + "]"; have != want {
			t.Errorf("lost %s, want %s", have, want)
		}
	}
	r.bringUp()
	check(t, r, req, res)
	if err := r.Check(t.Context(), request("a", b), now()); err == nil {
		t.Error("CHECK in another netns succeeds")
	}
	if l := r.List(api.Filter{Link: linkB}); len(l) != 1 || !slices.Equal(l[0].Addresses, addrsB) {
		t.Errorf("without an alias: %+v", l)
	}
	for _, x := range addresses(res) {
		nettest.Ping(t, b, x)
	}
	// An ADD into the same netns makes a new attachment, once the old one is gone.
	again := r.add(req)
	if again.Interfaces[0].Name == linkA {
		t.Error("the same incarnation")
	}
	nettest.Delete(t, b) // nobody can delete pod b by its key
	nettest.Eventually(t, "the link is gone with its pod", func() bool { return !r.hasLink(linkB) })
	r.Sweep(t.Context())
	nettest.Eventually(t, "it is forgotten", func() bool { return len(r.List(api.Filter{Link: linkB})) == 0 })
}

// If the ledger was lost when no pod was left, or only pods whose deletions wait, the agent begins a
// new ledger on its own. All addresses rest first.
func TestLostLedgerOfNoPods(t *testing.T) {
	r := start(t)
	r.cooldown = time.Hour
	r.add(request("a", nettest.Pod(t)))
	link, _ := r.linkOf("a")
	r.enqueue(r.deletion("a", link))
	r.lose(false)
	r.bringUp()
	nettest.Eventually(t, "a is gone", func() bool { return !r.hasLink(link) && len(r.index.All()) == 0 })
	r.lose(false)
	r.bringUp()
	_, err := r.tryAdd(request("b", nettest.Pod(t)))
	wantError(t, err, 100, "the ledger was lost")
}

// In another network namespace the agent cannot see the pods. If it sees no pod there, this does not
// prove that no pod is left.
func TestLostLedgerElsewhere(t *testing.T) {
	r := start(t)
	r.lose(false)
	marker := r.root.Epoch()
	must(t, os.WriteFile(marker, []byte(r.node.Boot+"/1/2/3\n"), 0o600))
	if err := r.open(); !errors.Is(err, daemon.ErrMoved) {
		t.Errorf("opened elsewhere: %v", err)
	}
	if _, err := r.rebuild(); !errors.Is(err, daemon.ErrMoved) {
		t.Errorf("rebuilt elsewhere: %v", err)
	}
	must(t, os.WriteFile(marker, []byte(r.core.Epoch+"\n"), 0o600))
	r.bringUp()
}

// The agent keeps the route of a pool that no configuration has any more, as long as the pool has
// pods, and while the pods' addresses rest. They rest for the default time, because the pool's own
// cooldown was lost with the ledger.
func TestRebuildFormerPool(t *testing.T) {
	r := start(t, "default=10.88.0.0/24", "old=10.89.0.0/24")
	pod := nettest.Pod(t)
	res := r.add(request("a", pod, `"pool":"old"`))
	r.lose(false)
	r.pools = r.pools[:1]
	made, err := r.rebuild()
	if err != nil || len(made.Pods) != 1 || strings.Join(made.Pods[0].Lost, "") != "pool" {
		t.Fatalf("%+v, %v", made, err)
	}
	r.bringUp()
	r.Sweep(t.Context())
	r.Sweep(t.Context())
	r.wantClean()
	if routes := nettest.Snapshot(t, nil).Only("route").String(); !strings.Contains(routes, "unreachable 10.89.0.0/24") {
		t.Errorf("its route is gone:\n%s", routes)
	}
	other := nettest.Pod(t)
	r.add(request("b", other))
	for _, x := range addresses(res) {
		nettest.Ping(t, other, x)
	}
	r.del("a", true)
	r.Sweep(t.Context())
	if routes := nettest.Snapshot(t, nil).Only("route").String(); !strings.Contains(routes, "unreachable 10.89.0.0/24") {
		t.Errorf("its address rests, and its route is gone:\n%s", routes)
	}
	if rests := r.core.Ledger.Resting(); len(rests) != 1 || rests[0].Until.Sub(rests[0].Freed) != config.DefaultCooldown {
		t.Errorf("its address: %+v", rests)
	}
}

// An older copy of the ledger lacks pods. The agent does queued deletions of such pods all the
// same. If the copy lacks two pods, and only one of them has a queued deletion, the agent
// refuses the copy, in this start and in each later one, until somebody acts.
func TestOlderLedgerAndDeletions(t *testing.T) {
	r := start(t)
	r.close()
	old, err := os.ReadFile(r.root.Ledger())
	must(t, err)
	r.bringUp()
	r.add(request("a", nettest.Pod(t)))
	r.add(request("b", nettest.Pod(t)))
	linkA, _ := r.linkOf("a")
	linkB, _ := r.linkOf("b")
	r.enqueue(r.deletion("a", linkA))
	r.close()
	current, err := os.ReadFile(r.root.Ledger())
	must(t, err)
	must(t, os.WriteFile(r.root.Ledger(), old, 0o600))
	for range 2 {
		if err := r.open(); !errors.Is(err, rebuild.ErrLedgerOld) || !strings.Contains(err.Error(), linkB) {
			t.Errorf("a start on an older ledger: %v", err)
		}
	}
	must(t, os.WriteFile(r.root.Ledger(), current, 0o600))
	r.bringUp()
	r.wantGone("a")
	r.enqueue(r.deletion("b", linkB))
	r.close()
	must(t, os.WriteFile(r.root.Ledger(), old, 0o600))
	if _, err := r.rebuild(); err == nil || !strings.Contains(err.Error(), "intact") {
		t.Errorf("rebuilding a ledger that lacks a deleted pod: %v", err)
	}
	r.bringUp()
	nettest.Eventually(t, "b is gone", func() bool { return !r.hasLink(linkB) && len(r.index.All()) == 0 })
}

// An agent gave up its pods when it moved to another network namespace. When the agent moves back,
// these pods are no reason to refuse the ledger.
func TestOlderLedgerMovedBack(t *testing.T) {
	r := start(t)
	r.add(request("a", nettest.Pod(t)))
	link, _ := r.linkOf("a")
	away := r.node.Netns
	away.Ino++
	must(t, r.core.Ledger.SetEpoch(daemon.Place{Boot: r.node.Boot, Netns: away}.ThisEpoch()))
	id := r.id("a")
	must(t, r.core.Ledger.Commit(t.Context(), ledger.Releasing(id, r.node.Wall()), ledger.Forget(id, r.core.Clock.Now())))
	r.close()
	if err := r.open(); err == nil {
		t.Fatal("opened elsewhere")
	}
	o, err := r.options()
	must(t, err)
	o.Moved = true
	a, err := open(o, r.kernel, false)
	must(t, err)
	r.Agent = a
	must(t, r.Restore(t.Context()))
	r.Sweep(t.Context())
	r.Sweep(t.Context())
	if r.hasLink(link) {
		t.Error("the link that was given up is left")
	}
	r.wantClean()
}
