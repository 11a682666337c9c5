package ipam

import (
	"net/netip"
	"slices"
)

// table finds the CIDR of an address: the smallest that contains it, because a draining CIDR
// may contain others. Rows are sorted by first address, larger CIDRs first. The wanted row
// is the last one that begins at or before the address, or one in which that row's CIDR
// lies.
type table []row

type row struct {
	cidr  *cidr
	outer int // the row of the smallest CIDR that this one lies in; -1: none
}

func newTable(cidrs []*cidr) table {
	t := make(table, len(cidrs))
	for i, c := range cidrs {
		t[i].cidr = c
	}
	slices.SortFunc(t, func(a, b row) int { return comparePrefix(a.cidr.prefix, b.cidr.prefix) })
	for i := range t {
		t[i].outer = t[:i].around(i-1, t[i].cidr.prefix.Addr())
	}
	return t
}

// around returns the smallest CIDR that contains the address, among row i and the rows in
// which it lies; -1 if none does.
func (t table) around(i int, a netip.Addr) int {
	for i >= 0 && !t[i].cidr.prefix.Contains(a) {
		i = t[i].outer
	}
	return i
}

func (t table) find(a netip.Addr) *cidr {
	n, end := 0, len(t) // the first row that begins after a is at n at least, and at end at most
	for n < end {
		if mid := (n + end) / 2; a.Less(t[mid].cidr.prefix.Addr()) {
			end = mid
		} else {
			n = mid + 1
		}
	}
	i := t.around(n-1, a)
	if i < 0 {
		return nil
	}
	return t[i].cidr
}
