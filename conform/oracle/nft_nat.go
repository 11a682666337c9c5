package oracle

import (
	"net/netip"
	"strings"

	nft "github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// translation tells a masquerade and the like, with the addresses and ports that stand before it in registers, or that a mark is set to a value.
func (r *nftTeller) translation(at int) (text string, n int) {
	values := map[uint32][]byte{}
	for ; at+n < len(r.exprs); n++ {
		i, ok := r.exprs[at+n].known.(*expr.Immediate)
		if !ok || i.Register != uint32(unix.NFT_REG_1+n) {
			break
		}
		values[i.Register] = i.Data
	}
	if at+n == len(r.exprs) {
		return "", 0
	}
	ok := false
	switch e := r.exprs[at+n].known.(type) {
	case *expr.NAT:
		text, ok = r.nat(e, values)
	case *expr.Masq:
		text, ok = to("masquerade", values, e.RegProtoMin, e.RegProtoMax)
		text += natFlags(e.Random, e.FullyRandom, e.Persistent, false)
	case *expr.Redir:
		text, ok = to("redirect", values, e.RegisterProtoMin, e.RegisterProtoMax)
		ok = ok && e.Flags&^(unix.NF_NAT_RANGE_PROTO_SPECIFIED|unix.NF_NAT_RANGE_PROTO_RANDOM|unix.NF_NAT_RANGE_PROTO_RANDOM_FULLY|unix.NF_NAT_RANGE_PERSISTENT) == 0
		text += natFlags(e.Flags&unix.NF_NAT_RANGE_PROTO_RANDOM != 0, e.Flags&unix.NF_NAT_RANGE_PROTO_RANDOM_FULLY != 0, e.Flags&unix.NF_NAT_RANGE_PERSISTENT != 0, false)
	case *expr.Meta, *expr.Ct:
		var key string
		if key, ok = r.setter(at + n); ok {
			text, ok = key+" set "+r.kindOf(at+n).say(values[unix.NFT_REG_1], r.links), len(values) == 1
		}
	}
	if !ok {
		return "", 0
	}
	return text, n + 1
}

// kindOf is the kind of what an expression sets.
func (r *nftTeller) kindOf(at int) kind {
	if m, ok := r.exprs[at].known.(*expr.Meta); ok {
		return metaKeys[uint32(m.Key)].kind
	}
	key, _ := r.exprs[at].number(unix.NFTA_CT_KEY)
	return ctKeys[key].kind
}

// natFlags tells flags.
func natFlags(random, fully, persistent, netmap bool) string {
	var all []string
	for _, f := range []struct {
		on   bool
		name string
	}{{random, "random"}, {fully, "fully-random"}, {persistent, "persistent"}, {netmap, "prefix"}} {
		if f.on {
			all = append(all, f.name)
		}
	}
	if len(all) == 0 {
		return ""
	}
	return " " + strings.Join(all, ",")
}

// to tells `redirect to :80-90`; false if the ports are not in the first registers.
func to(what string, values map[uint32][]byte, low, high uint32) (string, bool) {
	text, used, ok := span(values, unix.NFT_REG_1, low, high, portOf)
	if text != "" {
		text = " to :" + text
	}
	return what + text, ok && used == len(values)
}

func portOf(raw []byte) (string, bool) { return kindPort.say(raw, nil), len(raw) == 2 }

func addressOf(raw []byte) (string, bool) {
	addr, ok := netip.AddrFromSlice(raw)
	return addr.String(), ok
}

// span tells a value, or a range of two values. The values have to be in the registers from `from`. used says how many registers they take.
func span(values map[uint32][]byte, from, low, high uint32, say func([]byte) (string, bool)) (text string, used int, ok bool) {
	if low == 0 {
		return "", 0, high == 0
	}
	text, ok = say(values[low])
	if !ok || low != from {
		return "", 0, false
	}
	if high == 0 || high == low {
		return text, 1, true
	}
	second, ok := say(values[high])
	return text + "-" + second, 2, ok && high == from+1
}

func (r *nftTeller) nat(e *expr.NAT, values map[uint32][]byte) (string, bool) {
	address, used, ok := span(values, unix.NFT_REG_1, e.RegAddrMin, e.RegAddrMax, addressOf)
	port, more, fine := span(values, uint32(unix.NFT_REG_1+used), e.RegProtoMin, e.RegProtoMax, portOf)
	what, named := r.natHead(e)
	if !ok || !fine || !named || used+more != len(values) || used+more == 0 {
		return "", false
	}
	if used > 0 && (e.Family == unix.NFPROTO_IPV6) != (len(values[unix.NFT_REG_1]) == 16) {
		return "", false
	}
	if port != "" {
		if e.Family == unix.NFPROTO_IPV6 && address != "" {
			address = "[" + address + "]"
		}
		port = ":" + port
	}
	return what + " to " + address + port + natFlags(e.Random, e.FullyRandom, e.Persistent, e.Prefix), true
}

// natHead tells the verb, with the family where a table has several.
func (r *nftTeller) natHead(e *expr.NAT) (what string, ok bool) {
	what = map[expr.NATType]string{expr.NATTypeSourceNAT: "snat", expr.NATTypeDestNAT: "dnat"}[e.Type]
	family := map[uint32]nft.TableFamily{unix.NFPROTO_IPV4: nft.TableFamilyIPv4, unix.NFPROTO_IPV6: nft.TableFamilyIPv6}[e.Family]
	if family != r.family {
		what += " " + nftFamilies[family]
	}
	return what, family != 0
}

// mapped tells a translation to what a map says: dnat to tcp dport map @ports.
func (r *nftTeller) mapped(at int, p protocols) (text string, n int) {
	l, n := r.left(at, p)
	if n == 0 || !l.complete() || at+n+1 >= len(r.exprs) {
		return "", 0
	}
	look, ok := r.exprs[at+n].known.(*expr.Lookup)
	if !ok || !look.IsDestRegSet || look.DestRegister != unix.NFT_REG_1 {
		return "", 0
	}
	from, ok := r.lookup(look, l.text)
	if !ok {
		return "", 0
	}
	if key, ok := r.setter(at + n + 1); ok {
		return key + " set " + from, n + 2
	}
	e, ok := r.exprs[at+n+1].known.(*expr.NAT)
	if !ok || e.RegAddrMin != unix.NFT_REG_1 || e.RegAddrMax > unix.NFT_REG_1 || e.RegProtoMin != 0 || e.RegProtoMax != 0 {
		return "", 0
	}
	what, ok := r.natHead(e)
	if !ok {
		return "", 0
	}
	return what + " to " + from + natFlags(e.Random, e.FullyRandom, e.Persistent, e.Prefix), n + 2
}
