package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
)

func TestMain(m *testing.M) { nettest.Main(m) }

// Each check has a name of its own, and says why it matters in sentences of which the last one
// has no full stop.
func TestChecks(t *testing.T) {
	names := map[string]bool{}
	for _, c := range Checks() {
		if c.Name == "" || names[c.Name] || strings.ContainsAny(c.Name, " _/") {
			t.Errorf("name %q", c.Name)
		}
		names[c.Name] = true
		if c.Why == "" || strings.HasSuffix(c.Why, ".") || c.Look == nil {
			t.Errorf("%s: %q", c.Name, c.Why)
		}
	}
}

// A check that hangs is unknown when its limit is over, and keeps no other one waiting.
func TestRunHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		released := make(chan struct{})
		defer close(released)
		quick := func(context.Context, *Node) Finding { return Finding{Bad, "two\nlines", "mend it"} }
		hangs := func(context.Context, *Node) Finding { <-released; return ok("late") }
		begun := time.Now()
		all := Run(t.Context(), nil, []Check{
			{Name: "first", Why: "because", Look: quick},
			{Name: "hangs", Look: hangs},
			{Name: "hangs-longer", Look: hangs, Limit: time.Minute},
			{Name: "last", Look: quick},
		})
		if took := time.Since(begun); took != time.Minute {
			t.Errorf("it took %s", took)
		}
		if want := (Result{"first", Bad, "two lines", "because", "mend it"}); all[0] != want {
			t.Errorf("%+v, want %+v", all[0], want)
		}
		for _, r := range all[1:3] {
			if r.Verdict != Unknown || !strings.Contains(r.Seen, "no answer within ") || r.Fix == "" {
				t.Errorf("%+v", r)
			}
		}
		if all[3].Name != "last" || all[3].Verdict != Bad {
			t.Errorf("%+v", all[3])
		}
		if n := Count(all); n[Bad] != 2 || n[Unknown] != 2 || n[OK] != 0 {
			t.Errorf("%v", n)
		}
	})
}

// If the agent's folders hang, and no agent answers, all checks that need neither look all the
// same.
func TestFoldersHang(t *testing.T) {
	nettest.Need(t)
	n := sound(t)
	for _, dir := range []string{n.Root.State(), n.BinDir} {
		nettest.Hang(t, dir)
	}
	checks := Checks()
	for i := range checks {
		if name := checks[i].Name; name == "state-folder" || name == "space" || name == "sync" || name == "plugin" || name == "loopback" {
			checks[i].Limit = 50 * time.Millisecond // they hang for as long as they may
		}
	}
	unknown := ""
	for _, r := range Run(t.Context(), n, checks) {
		if strings.Contains(r.Seen, "no answer within") {
			unknown += r.Name + " "
		}
	}
	if want := "state-folder space sync plugin loopback "; unknown != want {
		t.Errorf("%shang, not %s", unknown, want)
	}
}

// Without an agent, a configuration and a plugin, every check says something.
func TestNothing(t *testing.T) {
	nettest.Need(t)
	dir := t.TempDir()
	for _, r := range Run(t.Context(), New(root.Dir(dir), dir, dir), Checks()) {
		want := map[string]Verdict{
			"agent": Bad, "agent-place": Unknown, "capabilities": Unknown, "seccomp": Unknown, "forwarding": Unknown,
			"pools": Bad, "plugin": Bad, "conflist": Bad, "kernel-links": OK, "kernel-nftables": OK,
		}[r.Name]
		if want != "" && r.Verdict != want || r.Seen == "" || r.Verdict == Bad && r.Fix == "" {
			t.Errorf("%+v", r)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("doctor leaves %v, %v", left, err)
	}
}

// Doctor changes nothing.
func TestChangesNothing(t *testing.T) {
	nettest.Need(t)
	n := sound(t)
	before := nettest.Snapshot(t, nil)
	namespaces := openNamespaces(t)
	Run(t.Context(), n, Checks())
	nettest.Same(t, before, nettest.Snapshot(t, nil), "changed")
	if now := openNamespaces(t); now != namespaces {
		t.Errorf("%d namespaces are open, and %d were before", now, namespaces)
	}
}

// openNamespaces counts this process's descriptors of namespaces: a namespace lives on while a
// descriptor of it is open.
func openNamespaces(t *testing.T) (n int) {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	nettest.Must(t, err)
	for _, f := range files {
		if to, _ := os.Readlink("/proc/self/fd/" + f.Name()); strings.HasPrefix(to, "net:[") {
			n++
		}
	}
	return n
}

// If nobody says into which folders a runtime looks, doctor names no folder in which something is
// missing, and none into which people should put something.
func TestBlind(t *testing.T) {
	nettest.Need(t)
	n := sound(t)
	n.Blind = errors.New("line 2 is no TOML")
	for _, p := range []string{plugin, "loopback"} {
		nettest.Must(t, os.Remove(filepath.Join(n.BinDir, p)))
	}
	for name, look := range map[string]func(context.Context, *Node) Finding{"plugin": lookPlugin, "loopback": lookLoopback, "runtime": lookRuntime} {
		f := look(t.Context(), n)
		if want := map[string]Verdict{"runtime": Warn}[name]; f.Verdict != cmp.Or(want, Unknown) || !strings.HasSuffix(f.Fix, "then: berth install --root "+string(n.Root)) {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

// The node is on the segment of a pool that is in force: that is no overlap, and no check expects the node to route to the pool.
func TestSegmentIsNoOverlap(t *testing.T) {
	n := sound(t)
	nettest.Run(t, nil, "ip addr add 192.0.2.3/24 dev up0")
	write(t, n.Root.Config(), "pools: [{name: default, cidrs: [10.88.0.0/16]}, {name: lan, cidrs: [192.0.2.64/26], segment: {subnets: [192.0.2.0/24]}}]\n")
	a := n.agent()
	a.status.Pools = append(a.status.Pools, api.Pool{Name: "lan", CIDRs: []api.PoolCIDR{{CIDR: "192.0.2.64/26"}}})
	n.agent = func() agent { return a }
	if f := lookPools(t.Context(), n); f.Verdict != OK {
		t.Errorf("%+v", f)
	}
	if pools := fmt.Sprint(n.pools()); strings.Contains(pools, "192.0.2") {
		t.Errorf("the pools are %s", pools)
	}
}
