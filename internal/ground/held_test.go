package ground

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/ledger"
)

// What the ground knows of the ledger's CIDRs follows each commit: CIDRs come, get another record, are being released and go. Pods, other
// nodes and owners without a record that can be read have none.
func TestHeldFollowsTheLedger(t *testing.T) {
	g := &Ground{Pools: new(ipam.IPAM), Hooks: Hooks{Counted: func() {}, Rests: func() {}}}
	of := func(id hold.ID, rec nodeRecord, cidrs ...string) *hold.Owner {
		o := &hold.Owner{ID: id, Meta: rec.encode()}
		for _, c := range cidrs {
			o.Names = append(o.Names, CIDRName(netip.MustParsePrefix(c)))
		}
		return o
	}
	pool := nodeRecord{Sort: poolSort, Pool: "a", Cooldown: "1m0s"}
	a, b := of("aaaaaaaaaa", pool, "10.1.0.0/24"), of("bbbbbbbbbb", pool, "10.2.0.0/24")
	drains := pool
	drains.Lease, drains.Cooldown = leaseDrains, "nonsense"
	other := of("cccccccccc", nodeRecord{Sort: "node"}, "10.3.0.0/24")
	other.Names = append(other.Names, hold.Name{Space: "node", Name: "n"})
	unreadable := of("dddddddddd", pool, "10.4.0.0/24")
	unreadable.Meta = []byte("{")
	going := of("bbbbbbbbbb", pool, "10.2.0.0/24")
	going.Releasing = time.Now()
	for _, step := range []struct {
		edit ledger.Edit
		want string
	}{
		{ledger.Edit{After: b}, "b 10.2.0.0/24 1m0s;"},
		{ledger.Edit{After: a}, "a 10.1.0.0/24 1m0s;b 10.2.0.0/24 1m0s;"},
		{ledger.Edit{After: other}, "a 10.1.0.0/24 1m0s;b 10.2.0.0/24 1m0s;"},
		{ledger.Edit{After: unreadable}, "a 10.1.0.0/24 1m0s;b 10.2.0.0/24 1m0s;"},
		{ledger.Edit{After: &hold.Owner{ID: "eeeeeeeeee"}}, "a 10.1.0.0/24 1m0s;b 10.2.0.0/24 1m0s;"},
		{ledger.Edit{Before: a, After: of("aaaaaaaaaa", drains, "10.1.0.0/24")}, "a 10.1.0.0/24 " + time.Duration(ipam.Unknown).String() + " drains;b 10.2.0.0/24 1m0s;"},
		{ledger.Edit{Before: b, After: going}, "a 10.1.0.0/24 " + time.Duration(ipam.Unknown).String() + " drains;"},
		{ledger.Edit{Before: going}, "a 10.1.0.0/24 " + time.Duration(ipam.Unknown).String() + " drains;"},
		{ledger.Edit{Before: a}, ""},
	} {
		g.Follow(ledger.Change{Owners: []ledger.Edit{step.edit}})
		have := ""
		for _, h := range g.heldCIDRs() {
			text := fmt.Sprintf("%.1s %s %s", h.owner, h.cidr, h.cooldown)
			if h.lease == leaseDrains {
				text += " drains"
			}
			have += text + ";"
		}
		if have != step.want {
			t.Errorf("after %+v there is %q, want %q", step.edit, have, step.want)
		}
	}
}
