package nft

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/stamp"
)

// A bound mapping leads to a pod whose link and address are other plugins' (Mapping.Via). These give the address to the
// pod's successor as soon as the pod is gone, and the mapping may still be there: the agent may be away, or the release may
// be owed. So packets of such a mapping leave the node by the pod's own link, or not at all. The kernel gives no other link
// the index of a link that is gone, as long as the network namespace lives. If that link is a bridge's port, the node's rules see the
// bridge alone: bridged.go watches over the port.
//
// The key of a bound mapping is the protocol, the pod's port and the pod's address. (A packet's port as it was before the redirection
// would tell more; but the library github.com/google/nftables, which others list rules with, cannot read a rule that asks for it.) So
// another program's redirection to the same port of the pod's address counts as the mapping's, until the mapping is gone: if the
// address is a successor's by then, the successor is not reached that way. Packets that nobody has redirected always pass.

// NoLink is the Via of a mapping that is closed: its packets leave by no link. The agent closes a mapping before it has the
// kernel forget the mapping's connections, and unmaps it after that.
const NoLink = -1

// boundSets returns the sets of a family that bind mappings to links:
//   - bound has the mappings that are bound;
//   - exits has the links by which their packets may leave.
func boundSets(f family) (bound, exits set) {
	bound = set{name: "bound" + f.suffix, keys: concat{nftables.TypeInetProto, nftables.TypeInetService, f.datatype}}
	exits = set{name: "exits" + f.suffix, keys: concat{nftables.TypeInetProto, nftables.TypeInetService, f.datatype, nftables.TypeIFIndex}}
	bound.of, exits.of = bound.keys.datatype(), exits.keys.datatype()
	return bound, exits
}

// podLinks returns the set of a family that has the addresses of pods to which bound mappings lead, with the links by which the node
// reaches them. Pods behind one bridge have the same link, so that an element needs the address: it is one pod's alone.
func podLinks(f family) set {
	s := set{name: "podlinks" + f.suffix, keys: concat{f.datatype, nftables.TypeIFIndex}}
	s.of = s.keys.datatype()
	return s
}

// boundKey returns the key of a mapping in the set bound.
func boundKey(m Mapping) string {
	return string([]byte{protocolNumber(m.Protocol), 0, 0, 0}) + portBytes(m.Pod.Port()) + string(m.Pod.Addr().AsSlice())
}

// addBounds adds the elements that bind ports, each once: two ports of the node may lead to the same port of a pod.
func addBounds(in map[string][]entry, ports []Port) {
	type element struct{ set, key string }
	seen := map[element]bool{}
	add := func(set, key, owner string) {
		if !seen[element{set, key}] {
			seen[element{set, key}] = true
			in[set] = append(in[set], entry{key: key, comment: owner})
		}
	}
	for _, p := range ports {
		if p.Via == 0 {
			continue
		}
		key, suffix := boundKey(p.Mapping), ipv4.suffix
		if p.Pod.Addr().Is6() {
			suffix = ipv6.suffix
		}
		add("bound"+suffix, key, p.Owner)
		pod := string(p.Pod.Addr().AsSlice())
		if p.Via != NoLink {
			link := linkBytes(p.Via)
			add("exits"+suffix, key+link, p.Owner)
			add("podlinks"+suffix, pod+link, p.Owner)
		}
		if p.BridgePort != 0 {
			add("bridged"+suffix, pod, p.Owner)
			add("bridgeports"+suffix, pod+linkBytes(p.BridgePort), p.Owner)
		}
	}
}

// linkBytes returns a link's index as a part of a concatenation.
func linkBytes(index int) string {
	return string(binary.NativeEndian.AppendUint32(nil, uint32(index)))
}

// viasOf returns the Via of the bound mappings of a family, by their keys.
func viasOf(f family, sets []set) map[string]int {
	bound, exits := boundSets(f)
	via := map[string]int{}
	for _, s := range sets {
		for _, e := range s.entries {
			switch {
			case s.name == bound.name && via[e.key] == 0:
				via[e.key] = NoLink
			case s.name == exits.name && len(e.key) == int(exits.of.Bytes):
				link := len(e.key) - 4
				via[e.key[:link]] = int(binary.NativeEndian.Uint32([]byte(e.key[link:])))
			}
		}
	}
	return via
}

// Close takes the links of bound mappings away from the instance's table, in one transaction: from then on no packet of
// these mappings leaves the node. It leaves mappings alone that are not bound. "Not there" is success.
//
//	delete element inet NAME exits4 { tcp . 80 . 10.88.0.7 . 12 }
func (t *Tables) Close(instance string, ports []Port) error {
	table, all := stamp.Table(instance), portEntries(ports)
	exits := map[string][]entry{}
	for _, name := range []string{"exits4", "exits6", "podlinks4", "podlinks6"} {
		exits[name] = all[name]
	}
	if err := t.unmap(table, byName(exits)); err != nil {
		return fmt.Errorf("closing ports in nftables table %s: %w", table, kernel.Classify(err))
	}
	return nil
}

// dropElsewhere drops packets of bound mappings that leave by another link than that of the mapping. It stands ahead of masquerade,
// and the node's own packets pass it, too. Packets that nobody has redirected pay for its first test only.
//
//	ct status dnat ct direction original meta l4proto . th dport . ip daddr @bound4 meta l4proto . th dport . ip daddr . oif != @exits4 drop
func dropElsewhere(f family) rule {
	bound, exits := boundSets(f)
	link := uint32(reg12)
	if f.proto == ipv6.proto {
		link = reg24
	}
	key, load := f.boundKey()
	words, exprs := f.ofBound(bound)
	return rule{
		text: fmt.Sprintf("%s %s . oif != @%s drop", words, key, exits.name),
		exprs: slices.Concat(exprs, load,
			[]expr.Any{
				&expr.Meta{Key: expr.MetaKeyOIF, Register: link},
				&expr.Lookup{SourceRegister: reg, SetName: exits.name, Invert: true},
				&expr.Verdict{Kind: expr.VerdictDrop},
			}),
	}
}

// ofBound lets a rule go on if a packet of the family goes to the pod of a bound mapping, and somebody has redirected it. Its first test is
// one that few packets pass.
func (f family) ofBound(bound set) (words string, exprs []expr.Any) {
	key, load := f.boundKey()
	return fmt.Sprintf("ct status dnat ct direction original meta nfproto ipv%s %s @%s", f.suffix, key, bound.name),
		slices.Concat(has(dnatted), goes(0), f.protocol(), load, []expr.Any{&expr.Lookup{SourceRegister: reg, SetName: bound.name}})
}

// boundKey loads a packet's key in the set bound (boundKey), and returns nft's words for it.
func (f family) boundKey() (words string, load []expr.Any) {
	return fmt.Sprintf("meta l4proto . th dport . %s daddr", f.word), []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg},
		&expr.Payload{OperationType: expr.PayloadLoad, DestRegister: reg4, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Payload{OperationType: expr.PayloadLoad, DestRegister: reg8, Base: expr.PayloadBaseNetworkHeader, Offset: f.daddr, Len: f.datatype.Bytes},
	}
}

// hideBoundLoopback is hideLoopback for pods of bound mappings, whose links are in no group of Berth's.
//
//	ip saddr 169.254.255.1 ip daddr . oif @podlinks4 masquerade fully-random
func hideBoundLoopback(f family, source netip.Addr) rule {
	return rule{
		text:  fmt.Sprintf("%[1]s saddr %[2]s %[1]s daddr . oif @podlinks%[3]s masquerade fully-random", f.word, source, f.suffix),
		exprs: slices.Concat(f.is(f.saddr, source), f.onPodLink(f.daddr, expr.MetaKeyOIF, false), []expr.Any{&expr.Masq{FullyRandom: true}}),
	}
}

// hideNeighbour gives the node's address to what comes to a bound mapping by the link by which its pod is reached: from another pod of
// the same bridge. Otherwise the pod would answer straight over the bridge, past the node's connection tracking.
//
//	ip daddr . iif @podlinks4 ip daddr . oif @podlinks4 ct status dnat masquerade fully-random
func hideNeighbour(f family) rule {
	return rule{
		text: fmt.Sprintf("%[1]s daddr . iif @podlinks%[2]s %[1]s daddr . oif @podlinks%[2]s ct status dnat masquerade fully-random", f.word, f.suffix),
		exprs: slices.Concat(f.protocol(), f.onPodLink(f.daddr, expr.MetaKeyIIF, false), f.onPodLink(f.daddr, expr.MetaKeyOIF, false),
			has(dnatted), []expr.Any{&expr.Masq{FullyRandom: true}}),
	}
}

// acceptUnbound lets packets of a family that neither came in by a link of a group nor are from a pod of a bound mapping skip the other
// rules.
//
//	iifgroup != 1073741824 ip saddr . iif != @podlinks4 accept
func acceptUnbound(group uint32, f family) rule {
	others := acceptOthers(group).exprs
	return rule{
		text:  fmt.Sprintf("iifgroup != %d %s saddr . iif != @podlinks%s accept", group, f.word, f.suffix),
		exprs: slices.Concat(others[:len(others)-1], f.protocol(), f.onPodLink(f.saddr, expr.MetaKeyIIF, true), others[len(others)-1:]),
	}
}

// onPodLink lets a rule go on if the set of pods' links has the address at an offset in the network header with the link by which the
// packet came or leaves; or, with not, if the set has not. The packet is of the family.
func (f family) onPodLink(offset uint32, link expr.MetaKey, not bool) []expr.Any {
	return append(f.withLink(offset, link), &expr.Lookup{SourceRegister: reg, SetName: podLinks(f).name, Invert: not})
}

// withLink loads an address, and behind it the index of a link.
func (f family) withLink(offset uint32, link expr.MetaKey) []expr.Any {
	second := uint32(reg4)
	if f.proto == ipv6.proto {
		second = reg16
	}
	return []expr.Any{f.address(offset, f.datatype.Bytes), &expr.Meta{Key: link, Register: second}}
}
