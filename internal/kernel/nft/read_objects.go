package nft

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// The kernel's table may contain what another program wrote. The library's decoders drop
// what they do not know and trust the lengths in comments. So this file uses the library's
// functions for single expressions only.

// readSets reads the table's sets with their members.
func readSets(c *netlink.Conn, family byte, table string) ([]set, error) {
	found, err := list(c, family, unix.NFT_MSG_GETSET, attr(unix.NFTA_SET_TABLE, table))
	if err != nil {
		return nil, err
	}
	var sets []set
	for _, attrs := range found {
		s := setOf(attrs)
		switch {
		case s.dynamic || s.foreign != "":
		case len(s.keys) > 0:
			if s.entries, err = readEntries(c, family, table, s.name); err != nil {
				return nil, fmt.Errorf("elements of %s: %w", s.name, err)
			}
		default:
			if s.ranges, err = readElements(c, family, table, s.name); err != nil {
				return nil, fmt.Errorf("members of %s: %w", s.name, err)
			}
		}
		sets = append(sets, s)
	}
	return sets, nil
}

// setOf returns a set without its members.
func setOf(attrs map[uint16][]byte) set {
	s := set{name: text(attrs[unix.NFTA_SET_NAME])}
	magic, bytes := number(attrs[unix.NFTA_SET_KEY_TYPE]), number(attrs[unix.NFTA_SET_KEY_LEN])
	for _, ports := range allPortSets() {
		if ports.isOf(attrs) {
			return set{name: s.name, of: ports.of, keys: ports.keys, values: ports.values}
		}
	}
	for _, of := range []nftables.SetDatatype{ipv4.datatype, ipv6.datatype, counted.of, asked(ipv4).of, asked(ipv6).of} {
		if magic == of.GetNFTMagic() && bytes == of.Bytes {
			s.of = of
		}
	}
	if s.of.Bytes == 0 {
		s.foreign = fmt.Sprintf("type %d", magic)
	}
	switch flags := number(attrs[unix.NFTA_SET_FLAGS]); flags {
	case unix.NFT_SET_INTERVAL:
	case unix.NFT_SET_EVAL, unix.NFT_SET_EVAL | unix.NFT_SET_TIMEOUT:
		s.dynamic = true
		if raw := attrs[unix.NFTA_SET_TIMEOUT]; len(raw) == 8 {
			s.timeout = time.Duration(binary.BigEndian.Uint64(raw)) * time.Millisecond
		}
		desc, err := nested(attrs[unix.NFTA_SET_DESC])
		if size := number(desc[unix.NFTA_SET_DESC_SIZE]); err != nil || size != room {
			s.foreign = fmt.Sprintf("size %d", size)
		}
	default:
		s.foreign = fmt.Sprintf("flags %#x", flags)
	}
	return s
}

// isOf reports whether a set in the kernel has the type of this set or map of host ports.
func (s set) isOf(attrs map[uint16][]byte) bool {
	flags, magic, bytes := uint32(0), uint32(0), uint32(0)
	if len(s.values) > 0 {
		to := s.values.datatype()
		flags, magic, bytes = unix.NFT_SET_MAP, to.GetNFTMagic(), to.Bytes
	}
	return number(attrs[unix.NFTA_SET_KEY_TYPE]) == s.of.GetNFTMagic() && number(attrs[unix.NFTA_SET_KEY_LEN]) == s.of.Bytes &&
		number(attrs[unix.NFTA_SET_FLAGS]) == flags &&
		number(attrs[unix.NFTA_SET_DATA_TYPE]) == magic && number(attrs[unix.NFTA_SET_DATA_LEN]) == bytes
}

// readElements reads an interval set's members.
func readElements(c *netlink.Conn, family byte, table, set string) ([]span, error) {
	var members []nftables.SetElement
	err := eachElement(c, family, table, set, func(elem map[uint16][]byte, key []byte) error {
		members = append(members, nftables.SetElement{
			Key:         key,
			IntervalEnd: number(elem[unix.NFTA_SET_ELEM_FLAGS])&unix.NFT_SET_ELEM_INTERVAL_END != 0,
		})
		return nil
	})
	return spansOf(members), err
}

// readEntries reads the elements of a set or map of host ports.
func readEntries(c *netlink.Conn, family byte, table, set string) ([]entry, error) {
	var entries []entry
	err := eachElement(c, family, table, set, func(elem map[uint16][]byte, key []byte) error {
		value, err := nested(elem[unix.NFTA_SET_ELEM_DATA])
		entries = append(entries, entry{
			key: string(key), value: string(value[unix.NFTA_DATA_VALUE]), comment: commentOf(elem[unix.NFTA_SET_ELEM_USERDATA]),
		})
		return err
	})
	return entries, err
}

// eachElement calls each with the attributes and the key of every element of a set.
func eachElement(c *netlink.Conn, family byte, table, set string, each func(elem map[uint16][]byte, key []byte) error) error {
	parts, err := list(c, family, unix.NFT_MSG_GETSETELEM,
		attr(unix.NFTA_SET_ELEM_LIST_TABLE, table), attr(unix.NFTA_SET_ELEM_LIST_SET, set))
	if err != nil {
		return err
	}
	for _, attrs := range parts {
		elements, err := netlink.UnmarshalAttributes(attrs[unix.NFTA_SET_ELEM_LIST_ELEMENTS])
		if err != nil {
			return err
		}
		for _, item := range elements {
			elem, err := nested(item.Data)
			if err != nil {
				return err
			}
			key, err := nested(elem[unix.NFTA_SET_ELEM_KEY])
			if err != nil {
				return err
			}
			if err := each(elem, key[unix.NFTA_DATA_VALUE]); err != nil {
				return err
			}
		}
	}
	return nil
}

// readChains reads the table's chains with their rules.
func readChains(c *netlink.Conn, family byte, table string) ([]chain, error) {
	found, err := list(c, family, unix.NFT_MSG_GETCHAIN) // of all tables of the family
	if err != nil {
		return nil, err
	}
	var chains []chain
	for _, attrs := range found {
		if text(attrs[unix.NFTA_CHAIN_TABLE]) != table {
			continue
		}
		ch := chain{name: text(attrs[unix.NFTA_CHAIN_NAME]), typ: nftables.ChainType(text(attrs[unix.NFTA_CHAIN_TYPE]))}
		if raw, ok := attrs[unix.NFTA_CHAIN_HOOK]; ok {
			at, err := nested(raw)
			if err != nil {
				return nil, err
			}
			ch.hook = hook(number(at[unix.NFTA_HOOK_HOOKNUM]))
			ch.priority = priority(int32(number(at[unix.NFTA_HOOK_PRIORITY])))
			if policy := nftables.ChainPolicy(number(attrs[unix.NFTA_CHAIN_POLICY])); policy != nftables.ChainPolicyAccept {
				ch.foreign = "policy drop"
			}
		} else {
			ch.foreign = "not a base chain"
		}
		if ch.rules, err = readRules(c, family, table, ch.name); err != nil {
			return nil, fmt.Errorf("rules of %s: %w", ch.name, err)
		}
		chains = append(chains, ch)
	}
	return chains, nil
}

// readRules reads a chain's rules in their order.
func readRules(c *netlink.Conn, family byte, table, chain string) ([]rule, error) {
	found, err := list(c, family, unix.NFT_MSG_GETRULE,
		attr(unix.NFTA_RULE_TABLE, table), attr(unix.NFTA_RULE_CHAIN, chain))
	if err != nil {
		return nil, err
	}
	var rules []rule
	for _, attrs := range found {
		r := rule{comment: commentOf(attrs[unix.NFTA_RULE_USERDATA])}
		list, err := netlink.UnmarshalAttributes(attrs[unix.NFTA_RULE_EXPRESSIONS])
		if err != nil {
			return nil, err
		}
		var words []string
		for _, item := range list {
			e, name, err := expression(item.Data)
			if err != nil {
				return nil, err
			}
			r.exprs, words = append(r.exprs, e), append(words, name)
		}
		r.text = fmt.Sprintf("[%s]", strings.Join(words, ", "))
		rules = append(rules, r)
	}
	return rules, nil
}

// expression decodes an expression and returns its name. An expression of a sort that
// Berth's rules do not use is nil, so that its rule equals none of Berth's.
func expression(raw []byte) (expr.Any, string, error) {
	attrs, err := nested(raw)
	if err != nil {
		return nil, "", err
	}
	var e expr.Any
	name, data := text(attrs[unix.NFTA_EXPR_NAME]), attrs[unix.NFTA_EXPR_DATA]
	switch name {
	case "meta":
		e = &expr.Meta{}
	case "cmp":
		e = &expr.Cmp{}
	case "range":
		e = &expr.Range{}
	case "payload":
		p, err := nested(data)
		if _, writes := p[unix.NFTA_PAYLOAD_SREG]; err == nil && writes {
			return readWrite(p), name, nil
		}
		e = &expr.Payload{}
	case "lookup":
		e = &expr.Lookup{}
	case "fib":
		e = &expr.Fib{}
	case "masq":
		m, err := nested(data)
		if _, ok := m[unix.NFTA_MASQ_REG_PROTO_MIN]; err == nil && ok {
			return &masqTo{
				flags: number(m[unix.NFTA_MASQ_FLAGS]),
				min:   number(m[unix.NFTA_MASQ_REG_PROTO_MIN]), max: number(m[unix.NFTA_MASQ_REG_PROTO_MAX]),
			}, name, nil
		}
		e = &expr.Masq{}
	case "exthdr":
		h, err := nested(data)
		_, reads := h[unix.NFTA_EXTHDR_DREG]
		_, writes := h[unix.NFTA_EXTHDR_SREG]
		if kind := h[unix.NFTA_EXTHDR_TYPE]; err == nil && !reads && !writes && len(kind) == 1 && number(h[unix.NFTA_EXTHDR_OP]) == unix.NFT_EXTHDR_OP_TCPOPT {
			return &resetOption{kind: kind[0]}, name, nil
		}
		if err != nil || !reads || writes {
			return nil, name, err
		}
		e = &expr.Exthdr{}
	case "ct":
		e = &expr.Ct{}
	case "notrack": // which has no attributes
		return &expr.Notrack{}, name, nil
	case "nat":
		e = &expr.NAT{}
	case "bitwise":
		e = &expr.Bitwise{}
	case "numgen":
		e = &expr.Numgen{}
	case "connlimit":
		e = &expr.Connlimit{}
	case "limit":
		e = &expr.Limit{}
	case "dynset":
		e, err := dynset(data)
		return e, name, err
	case "immediate":
		e, err := immediate(data)
		return e, name, err
	case "byteorder": // the library can write these, but not read them
		b, err := nested(data)
		return &expr.Byteorder{
			SourceRegister: number(b[unix.NFTA_BYTEORDER_SREG]),
			DestRegister:   number(b[unix.NFTA_BYTEORDER_DREG]),
			Op:             expr.ByteorderOp(number(b[unix.NFTA_BYTEORDER_OP])),
			Len:            number(b[unix.NFTA_BYTEORDER_LEN]),
			Size:           number(b[unix.NFTA_BYTEORDER_SIZE]),
		}, name, err
	default:
		return nil, name, nil
	}
	if err := expr.Unmarshal(unix.NFPROTO_INET, data, e); err != nil {
		return nil, name, fmt.Errorf("expression %s: %w", name, err)
	}
	return e, name, nil
}

// readWrite decodes a payload expression that writes. It returns nil if Berth makes no such expression.
func readWrite(p map[uint16][]byte) expr.Any {
	if number(p[unix.NFTA_PAYLOAD_BASE]) == unix.NFT_PAYLOAD_TRANSPORT_HEADER {
		if number(p[unix.NFTA_PAYLOAD_CSUM_TYPE]) != unix.NFT_PAYLOAD_CSUM_NONE || number(p[unix.NFTA_PAYLOAD_CSUM_FLAGS]) != 0 {
			return nil
		}
		return &writeBack{offset: number(p[unix.NFTA_PAYLOAD_OFFSET]), size: number(p[unix.NFTA_PAYLOAD_LEN]), register: number(p[unix.NFTA_PAYLOAD_SREG])}
	}
	w := &writeAddress{
		offset: number(p[unix.NFTA_PAYLOAD_OFFSET]), size: number(p[unix.NFTA_PAYLOAD_LEN]), register: number(p[unix.NFTA_PAYLOAD_SREG]),
		header: number(p[unix.NFTA_PAYLOAD_CSUM_TYPE]) == unix.NFT_PAYLOAD_CSUM_INET,
	}
	sum := uint32(0)
	if w.header {
		sum = sumAt
	}
	if number(p[unix.NFTA_PAYLOAD_BASE]) != unix.NFT_PAYLOAD_NETWORK_HEADER || number(p[unix.NFTA_PAYLOAD_CSUM_OFFSET]) != sum ||
		number(p[unix.NFTA_PAYLOAD_CSUM_FLAGS]) != unix.NFT_PAYLOAD_L4CSUM_PSEUDOHDR {
		return nil
	}
	return w
}

// dynset decodes an expression that adds an element to a set, or updates or deletes an element. dynset
// also decodes the expression that counts in the element.
func dynset(raw []byte) (expr.Any, error) {
	attrs, err := nested(raw)
	if err != nil {
		return nil, err
	}
	d := &expr.Dynset{
		SrcRegKey:  number(attrs[unix.NFTA_DYNSET_SREG_KEY]),
		SrcRegData: number(attrs[unix.NFTA_DYNSET_SREG_DATA]),
		SetName:    text(attrs[unix.NFTA_DYNSET_SET_NAME]),
		Operation:  number(attrs[unix.NFTA_DYNSET_OP]),
	}
	timeout := slices.ContainsFunc(attrs[unix.NFTA_DYNSET_TIMEOUT], func(b byte) bool { return b != 0 })
	_, more := attrs[expr.NFTA_DYNSET_EXPRESSIONS]
	if timeout || more || number(attrs[unix.NFTA_DYNSET_FLAGS])&unix.NFT_DYNSET_F_INV != 0 {
		return nil, nil // no expression of Berth's
	}
	if raw, ok := attrs[unix.NFTA_DYNSET_EXPR]; ok {
		e, _, err := expression(raw)
		if err != nil {
			return nil, err
		}
		d.Exprs = []expr.Any{e}
	}
	return d, nil
}

// immediate decodes an immediate expression, which is a verdict or a value. It does not
// use the library's decoder, because that decoder trusts the lengths in the expression.
func immediate(raw []byte) (expr.Any, error) {
	attrs, err := nested(raw)
	if err != nil {
		return nil, err
	}
	data, err := nested(attrs[unix.NFTA_IMMEDIATE_DATA])
	if err != nil {
		return nil, err
	}
	if to := number(attrs[unix.NFTA_IMMEDIATE_DREG]); to != unix.NFT_REG_VERDICT {
		return &expr.Immediate{Register: to, Data: data[unix.NFTA_DATA_VALUE]}, nil
	}
	v, err := nested(data[unix.NFTA_DATA_VERDICT])
	if err != nil || v[unix.NFTA_VERDICT_CODE] == nil {
		return nil, err
	}
	return &expr.Verdict{
		Kind:  expr.VerdictKind(int32(number(v[unix.NFTA_VERDICT_CODE]))),
		Chain: text(v[unix.NFTA_VERDICT_CHAIN]),
	}, nil
}

// comment returns the user data of a rule with a comment, in nft(8)'s form: type, length,
// text with a final NUL.
func comment(s string) []byte {
	if s == "" {
		return nil
	}
	return userdata.AppendString(nil, userdata.TypeComment, s)
}

// commentOf is the inverse of comment. It returns other user data quoted.
func commentOf(raw []byte) string {
	if len(raw) == 0 {
		return ""
	}
	if s := text(raw[min(2, len(raw)):]); slices.Equal(comment(s), raw) {
		return s
	}
	return fmt.Sprintf("%q", raw)
}
