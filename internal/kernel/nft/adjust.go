package nft

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"

	"github.com/berth-net/berth/internal/kernel"
)

// Adjust turns the table of the ruleset was into that of r if they differ in Pools, Excluded and Tunnels alone, such as when
// a cluster's node comes or goes: one transaction with the addresses in which they differ. It reads nothing, and leaves
// everything else as it is. adjusted is false if the rulesets differ in more, and then Adjust does nothing. If the kernel's
// table is not that of was, the kernel may refuse the transaction, as a whole.
//
//	delete element inet NAME excluded4 { 10.244.3.0/24 }; add element inet NAME excluded4 { 10.244.7.0/24 }
func (t *Tables) Adjust(was, r Ruleset) (adjusted bool, err error) {
	alike := was
	alike.Pools, alike.Excluded, alike.Tunnels = r.Pools, r.Excluded, r.Tunnels
	if !reflect.DeepEqual(alike, r) {
		return false, nil
	}
	before, after := was.table(t.Lacks()).intervals(), r.table(t.Lacks()).intervals()
	if slices.EqualFunc(before, after, func(a, b set) bool { return slices.Equal(a.ranges, b.ranges) }) {
		return true, nil // such as an address that another CIDR has, too
	}
	err = t.transact(func(q *request) {
		for i, s := range after { // the same sets as before
			lost, gained := differ(before[i].ranges, s.ranges)
			q.deleteMembers(r.Table(), s.name, elements(lost))
			q.addMembers(r.Table(), 0, s.name, elements(gained))
		}
	})
	if err != nil {
		return true, fmt.Errorf("changing addresses in nftables table %s: %w", r.Table(), kernel.Classify(err))
	}
	return true, nil
}

// intervals returns the table's sets of addresses.
func (t table) intervals() []set {
	return slices.DeleteFunc(slices.Clone(t.sets), func(s set) bool { return s.dynamic || len(s.keys) > 0 })
}

// differ returns the spans that only was has, and those that only now has. Both are sorted, and so are the results.
func differ(was, now []span) (lost, gained []span) {
	for len(was) > 0 && len(now) > 0 {
		a, b := was[0], now[0]
		switch c := cmp.Or(a.first.Compare(b.first), a.last.Compare(b.last)); {
		case c < 0:
			lost, was = append(lost, a), was[1:]
		case c > 0:
			gained, now = append(gained, b), now[1:]
		default:
			was, now = was[1:], now[1:]
		}
	}
	return append(lost, was...), append(gained, now...)
}
