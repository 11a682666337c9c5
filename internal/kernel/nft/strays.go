package nft

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/stamp"
)

// The rules here note addresses of the pools that have begun a connection with somebody by a link that is none of the
// instance's, or by the node itself. No pod of the instance has begun or got such a connection: the pool's route was
// missing, another program's route went before it, or another program's pod had the address. Connection tracking
// keeps the connection, and whoever gets the address next would get what belongs to it. So nobody should get a
// noted address before the connections of the address are forgotten (Strays, ClearStrays).
//
// The rules are in chains of type nat, which only the first packet of a connection passes. These chains come before
// others of the type and hook, because the kernel asks no further chain once one has rewritten the packet.
//
// The sets of strays lose what they have noted if somebody deletes, flushes or replaces the table, and a full set takes
// no further address. So each set has a mark, 0.0.0.0 or ::, which only MarkStrays puts there. Without the mark nobody
// knows which addresses are strays. The mark goes with all else in the set, and the packet whose address finds no room
// deletes the mark.

const (
	// priorityStrays is nearly the lowest that a chain of type nat can have (-199).
	priorityStrays priority = -190
	// priorityStraysFrom is behind dropFromElsewhere: nobody outside fills the set in a pod's name.
	priorityStraysFrom = priorityDstnat - 10
)

func strays(f family) set { return set{name: "strays" + f.suffix, of: f.datatype, dynamic: true} }

// noteStrays returns the chains that note strays, and their sets. low to high are the groups of the instance's links.
func noteStrays(low, high uint32) (sets []set, chains []chain) {
	out := chain{name: "strays_out", typ: "nat", hook: hookPostrouting, priority: priorityStrays}
	in := chain{name: "strays_in", typ: "nat", hook: hookInput, priority: priorityStrays}
	from := chain{name: "strays_from", typ: "nat", hook: hookPrerouting, priority: priorityStraysFrom}
	own := chain{name: "strays_own", typ: "nat", hook: hookOutput, priority: priorityStrays} // what the node itself begins
	outside, outsideExprs := notInGroups("oifgroup", low, high)
	inside, insideExprs := notInGroups("iifgroup", low, high)
	for _, f := range []family{ipv4, ipv6} {
		sets = append(sets, strays(f))
		out.rules = append(out.rules, f.noteStray(outside+" ", outsideExprs, f.daddr)...)
		in.rules = append(in.rules, f.noteStray(inside+" ", insideExprs, f.daddr)...)
		from.rules = append(from.rules, f.noteStray(inside+" ", insideExprs, f.saddr)...)
		own.rules = append(own.rules, f.noteStray("", nil, f.saddr)...)
	}
	return sets, []chain{out, in, from, own}
}

// noteStray notes the address at offset in the network header, if it is in the pools, and links lets the rule go on: the
// packet's link is in none of the instance's groups. If there is no room for the address, it deletes the mark.
//
//	oifgroup != 1073741824-1073742847 ip daddr @pools4 add @strays4 { ip daddr }
//	oifgroup != 1073741824-1073742847 ip daddr @pools4 ip daddr != @strays4 delete @strays4 { ip daddr & 0.0.0.0 }
//
// nft has no words for an element of a rule that is the same for all packets, and others load again what nft lists.
func (f family) noteStray(words string, links []expr.Any, offset uint32) []rule {
	addr, set, mark := f.word+" daddr", strays(f).name, f.mark()
	if offset == f.saddr {
		addr = f.word + " saddr"
	}
	text := fmt.Sprintf("%s%s @pools%s", words, addr, f.suffix)
	exprs := slices.Concat(links, f.protocol(), f.match(offset, "pools"+f.suffix, false))
	return []rule{
		{
			text: fmt.Sprintf("%s add @%s { %s }", text, set, addr),
			exprs: slices.Concat(exprs, []expr.Any{
				f.address(offset, f.datatype.Bytes),
				&expr.Dynset{SrcRegKey: reg, SetName: set, Operation: unix.NFT_DYNSET_OP_ADD},
			}),
		},
		{
			text: fmt.Sprintf("%s %s != @%s delete @%s { %s & %s }", text, addr, set, set, addr, mark),
			exprs: slices.Concat(exprs, f.match(offset, set, true), []expr.Any{
				f.address(offset, f.datatype.Bytes),
				&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: f.datatype.Bytes, Mask: mark.AsSlice(), Xor: mark.AsSlice()},
				&expr.Dynset{SrcRegKey: reg, SetName: set, Operation: deleteFrom},
			}),
		},
	}
}

// mark returns the element that shows that a set of strays has all strays since MarkStrays. No pod has this address.
func (f family) mark() netip.Addr {
	if f.proto == ipv4.proto {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

func familyOf(a netip.Addr) family {
	if a.Is4() {
		return ipv4
	}
	return ipv6
}

// Strays returns those among addrs that have begun a connection with somebody by a link that is none of the
// instance's, since the last MarkStrays or ClearStrays. whole is false if the table may have lost strays of the addresses'
// families that it had noted, of both families if there are no addresses; then found may lack some. A table that is gone, or
// without host ports, or on a kernel that lacks what these need (HostPorts), is never whole.
//
// The kernel looks for the mark just before it looks for the address. Whoever flushes the set in between is heard of by
// Watch only.
//
//	get element inet NAME strays4 { 0.0.0.0, ADDR }
func (t *Tables) Strays(instance string, addrs []netip.Addr) (found []netip.Addr, whole bool, err error) {
	asked := addrs
	if len(addrs) == 0 {
		asked = []netip.Addr{ipv4.mark(), ipv6.mark()}
	}
	whole = true
	err = t.conns.asking(func(c *netlink.Conn) error {
		for _, a := range asked {
			f := familyOf(a)
			has, err := hasElements(c, stamp.Table(instance), strays(f).name, f.mark(), a)
			if err != nil {
				return err
			}
			whole = whole && has > 0
			if has > 1 && a != f.mark() {
				found = append(found, a)
			}
		}
		return nil
	})
	if err != nil {
		return nil, false, fmt.Errorf("looking for strays in nftables table %s: %w", stamp.Table(instance), kernel.Classify(err))
	}
	return found, whole, nil
}

// Noted returns all addresses that Strays could find. A table that is gone, or without the sets, has none.
//
//	list set inet NAME strays4
func (t *Tables) Noted(instance string) (noted []netip.Addr, err error) {
	err = t.conns.reading(func(c *netlink.Conn) error {
		noted = nil
		for _, f := range []family{ipv4, ipv6} {
			err := eachElement(c, 0, stamp.Table(instance), strays(f).name, func(_ map[uint16][]byte, key []byte) error {
				if a, ok := netip.AddrFromSlice(key); ok && a != f.mark() {
					noted = append(noted, a)
				}
				return nil
			})
			if err != nil && !errors.Is(err, unix.ENOENT) {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("listing the strays in nftables table %s: %w", stamp.Table(instance), kernel.Classify(err))
	}
	return noted, nil
}

// MarkStrays empties the sets of strays. From then on, Strays tells of all strays. The caller sees to it that the kernel
// forgets all connections of the pools' free addresses which may have begun before.
//
//	flush set inet NAME strays4; add element inet NAME strays4 { 0.0.0.0 }; and the same for IPv6
func (t *Tables) MarkStrays(instance string) error {
	err := t.transact(func(r *request) {
		table := stamp.Table(instance)
		for _, f := range []family{ipv4, ipv6} {
			r.flushSet(table, strays(f))
			r.add(unix.NFT_MSG_NEWSETELEM, netlink.Create, r.elements(table, strays(f).name, f.mark())...)
		}
	})
	if err != nil {
		return fmt.Errorf("marking the sets of strays in nftables table %s: %w", stamp.Table(instance), kernel.Classify(err))
	}
	return nil
}

// ClearStrays says that addresses which Strays has found are noted no more. The caller forgets the connections of the
// addresses afterwards: what begins meanwhile is noted anew.
//
//	delete element inet NAME strays4 { ADDR }
func (t *Tables) ClearStrays(instance string, addrs []netip.Addr) error {
	for _, a := range addrs { // one transaction for each: another caller may have cleared one of them
		err := t.transact(func(r *request) {
			r.add(unix.NFT_MSG_DELSETELEM, 0, r.elements(stamp.Table(instance), strays(familyOf(a)).name, a)...)
		})
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("clearing strays in nftables table %s: %w", stamp.Table(instance), kernel.Classify(err))
		}
	}
	return nil
}

// hasElements returns how many of addrs a set has, up to the first that it does not have.
func hasElements(c *netlink.Conn, table, set string, addrs ...netip.Addr) (has int, err error) {
	var r request
	asked := r.elements(table, set, addrs...)
	if r.err != nil {
		return 0, r.err
	}
	// The kernel answers with a message for each element, and then with an acknowledgement, or with an error for the first
	// element that is missing.
	answers, err := ask(c, 0, unix.NFT_MSG_GETSETELEM, netlink.Acknowledge, asked...)
	for err == nil && answers[0].Header.Type != netlink.Error {
		has++
		answers, err = c.Receive()
	}
	if errors.Is(err, unix.ENOENT) {
		err = nil
	}
	return has, err
}

// elements returns the attributes that name elements of a set of addresses.
func (r *request) elements(table, set string, addrs ...netip.Addr) []netlink.Attribute {
	named := make([]netlink.Attribute, len(addrs))
	for i, a := range addrs {
		named[i] = r.nest(unix.NFTA_LIST_ELEM, r.value(unix.NFTA_SET_ELEM_KEY, string(a.AsSlice())))
	}
	return []netlink.Attribute{
		attr(unix.NFTA_SET_ELEM_LIST_TABLE, table), attr(unix.NFTA_SET_ELEM_LIST_SET, set),
		r.nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS, named...),
	}
}
