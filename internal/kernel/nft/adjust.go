package nft

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/berth-net/berth/internal/cidrs"
	"github.com/berth-net/berth/internal/kernel"
)

// Adjust turns the table of the ruleset was into that of r if they differ in Pools, Excluded and Tunnels alone, such as when
// a cluster's node comes or goes: one transaction with the addresses in which they differ. It reads nothing, and leaves
// everything else as it is; of Excluded and Tunnels it looks only at what differs. adjusted is false if the rulesets differ in
// more, and then Adjust does nothing. If the kernel's table is not that of was, the kernel may refuse the transaction, as a whole.
//
//	delete element inet NAME excluded4 { 10.244.3.0/24 }; add element inet NAME excluded4 { 10.244.7.0/24 }
func (t *Tables) Adjust(was, r Ruleset) (adjusted bool, err error) {
	alike := was
	alike.Pools, alike.Excluded, alike.Tunnels = r.Pools, r.Excluded, r.Tunnels
	if !reflect.DeepEqual(alike, r) {
		return false, nil
	}
	var lost, gained []set // in pairs of the same name
	before := []addresses{was.pools(), was.excluded(), was.tunnels()}
	for i, after := range []addresses{r.pools(), r.excluded(), r.tunnels()} {
		if less, more := cidrs.Differ(before[i].of, after.of); len(less)+len(more) > 0 {
			lost = append(lost, after.pair(slices.Values(less))...)
			gained = append(gained, after.pair(slices.Values(more))...)
		}
	}
	if len(lost) == 0 {
		return true, nil // such as an address that another CIDR has, too
	}
	err = t.transact(func(q *request) {
		for i := range lost {
			q.deleteMembers(r.Table(), lost[i].name, elements(lost[i].ranges))
			q.addMembers(r.Table(), 0, gained[i].name, elements(gained[i].ranges))
		}
	})
	if err != nil {
		return true, fmt.Errorf("changing addresses in nftables table %s: %w", r.Table(), kernel.Classify(err))
	}
	return true, nil
}
