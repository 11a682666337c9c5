package agent

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kinds/table"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/stamp"
	"github.com/berth-net/berth/test/programs"
)

// An agent follows an agent with another layout of the table, and writes its own table at the
// start. A pod that was cut off stays cut off, and an attached pod keeps its rules. (That no
// packet slips through meanwhile is for kernel/nft to show.)
func TestStartTakesAFormerTableOver(t *testing.T) {
	programs.Need(t, "nft")
	r, b := startBreakable(t)
	r.add(request("a", nettest.Pod(t)))
	to := addresses(r.add(request("b", nettest.Pod(t))))
	b.set(true, "release", "link", r.id("a"))
	r.del("a", false)

	owners := r.core.Ledger.Owners()
	at := slices.IndexFunc(owners, func(o hold.Owner) bool {
		return slices.ContainsFunc(o.Holds, func(h hold.Hold) bool { return h.Spec.Kind() == table.KindName })
	})
	table, owner := stamp.Table(r.core.Instance), owners[at]
	low, high := r.node.Groups.Dying()
	r.close()
	former := fmt.Sprintf(`delete table inet %[1]s
table inet %[1]s {
	chain cut_in {
		type filter hook prerouting priority raw; policy accept;
		iifgroup %[2]d-%[3]d drop comment "%[5]s"
		iifgroup %[4]d fib saddr . iif oif missing drop comment "%[5]s"
	}
	chain cut_out {
		type filter hook postrouting priority raw; policy accept;
		oifgroup %[2]d-%[3]d drop comment "%[5]s"
	}
}
`, table, low, high, r.node.Groups.Live(), owner.ID)
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(former)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	r.bringUp()
	if err := r.core.Engine.Verify(t.Context(), owner); err != nil {
		t.Errorf("after the start: %v", err)
	}
	if l := r.List(key("a")); len(l) != 1 || l[0].Releasing == nil {
		t.Errorf("who was cut off: %+v", l)
	}
	r.wantAttached("b")
	late := nettest.Pod(t)
	r.add(request("c", late))
	for _, addr := range to {
		nettest.Ping(t, late, addr)
	}
	b.heal()
	r.core.Engine.Retry()
	r.wantGone("a")
	r.wantClean()
}
