package ipam

import (
	"net/netip"
	"slices"
)

// table finds the CIDR of an address: the smallest that has it in it, since a
// draining CIDR may have others inside it. Sorted by first address, the larger
// first, the one wanted is the last that begins at or before the address, or
// one that this one lies in.
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

// around returns the first row that has the address, of row i and those it
// lies in; -1 if none has it.
func (t table) around(i int, a netip.Addr) int {
	for i >= 0 && !t[i].cidr.prefix.Contains(a) {
		i = t[i].outer
	}
	return i
}

func (t table) find(a netip.Addr) *cidr {
	n, end := 0, len(t) // the first that begins after a is of t[n:end+1]
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
