package nft

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// masqTo is masquerade to a range of ports. The library's Masq writes either the range or
// the flags, but the kernel looks at the range only if the flag for it is set (nft_masq.c).
type masqTo struct {
	expr.Any // nil: the library never sees one
	flags    uint32
	min, max uint32 // the registers that have the ports
}

// resetOption overwrites a TCP option, if a segment has it, with options that say nothing.
// The library's Exthdr cannot write it, because it always names a register.
type resetOption struct {
	expr.Any // nil: the library never sees one
	kind     byte
}

// writeAddress writes a register over an address in the network header, and mends the checksums.
// The library's Payload cannot write it for IPv6, whose header has no checksum of its own.
type writeAddress struct {
	expr.Any               // nil: the library never sees one
	offset, size, register uint32
	header                 bool // the network header has a checksum, too
}

// writeBack writes a register over a part of the transport's header that the rule has loaded into the
// register, so that no checksum changes.
type writeBack struct {
	expr.Any               // nil: the library never sees one
	offset, size, register uint32
}

// unready is how long a socket may not be ready to send or receive. The kernel answers before a
// request returns, so nobody has to wait for the socket. But after EINTR the library waits for news
// that the socket is ready, and no such news come if the socket has been ready all the time.
const unready = 2 * time.Second

// sumAt is where an IPv4 header has its checksum, in bytes.
const sumAt = 10

// request collects the messages of one transaction.
type request struct {
	family   byte // of the tables that the next messages are about: NFPROTO_BRIDGE, or 0 for inet
	messages []netlink.Message
	err      error // the first error of encoding
}

// in says of which family the tables are that the next messages are about.
func (r *request) in(family byte) *request {
	r.family = family
	return r
}

// add appends a message about a table. The kernel answers each message with an ack.
func (r *request) add(msg uint16, flags netlink.HeaderFlags, attrs ...netlink.Attribute) {
	r.messages = append(r.messages, netlink.Message{
		Header: netlink.Header{Type: messageType(msg), Flags: netlink.Request | netlink.Acknowledge | flags},
		Data:   append(genmsg(r.family), r.encode(attrs)...),
	})
}

// genmsg returns a struct nfgenmsg about a table: family, version, resource id.
func genmsg(family byte) []byte {
	return []byte{cmp.Or(family, unix.NFPROTO_INET), unix.NFNETLINK_V0, 0, 0}
}

// encode encodes attributes.
func (r *request) encode(attrs []netlink.Attribute) []byte {
	raw, err := netlink.MarshalAttributes(attrs)
	r.fail(err)
	return raw
}

func (r *request) fail(err error) {
	if r.err == nil && err != nil {
		r.err = fmt.Errorf("encoding it: %w", err)
	}
}

// nest makes an attribute that contains attributes.
func (r *request) nest(typ uint16, attrs ...netlink.Attribute) netlink.Attribute {
	return netlink.Attribute{Type: typ | unix.NLA_F_NESTED, Data: r.encode(attrs)}
}

// attr32 makes a 32-bit attribute.
func attr32(typ uint16, n uint32) netlink.Attribute {
	return netlink.Attribute{Type: typ, Data: binary.BigEndian.AppendUint32(nil, n)}
}

func (r *request) addTable(name string) {
	r.add(unix.NFT_MSG_NEWTABLE, netlink.Create, attr(unix.NFTA_TABLE_NAME, name), attr32(unix.NFTA_TABLE_FLAGS, 0))
}

func (r *request) deleteTable(name string) {
	r.add(unix.NFT_MSG_DELTABLE, 0, attr(unix.NFTA_TABLE_NAME, name))
}

// addSet adds a set with its members. id is a number that no other set of the transaction
// has.
func (r *request) addSet(table string, id uint32, s set) {
	attrs := []netlink.Attribute{
		attr(unix.NFTA_SET_TABLE, table), attr(unix.NFTA_SET_NAME, s.name), attr32(unix.NFTA_SET_ID, id),
		attr32(unix.NFTA_SET_KEY_TYPE, s.of.GetNFTMagic()), attr32(unix.NFTA_SET_KEY_LEN, s.of.Bytes),
	}
	switch {
	case s.dynamic && s.timeout > 0:
		attrs = append(attrs, attr32(unix.NFTA_SET_FLAGS, unix.NFT_SET_EVAL|unix.NFT_SET_TIMEOUT),
			netlink.Attribute{Type: unix.NFTA_SET_TIMEOUT, Data: binary.BigEndian.AppendUint64(nil, uint64(s.timeout.Milliseconds()))})
	case s.dynamic:
		attrs = append(attrs, attr32(unix.NFTA_SET_FLAGS, unix.NFT_SET_EVAL))
	case len(s.values) > 0:
		to := s.values.datatype()
		attrs = append(attrs, attr32(unix.NFTA_SET_FLAGS, unix.NFT_SET_MAP),
			attr32(unix.NFTA_SET_DATA_TYPE, to.GetNFTMagic()), attr32(unix.NFTA_SET_DATA_LEN, to.Bytes))
	case s.of == nftables.TypeIFIndex: // the user data tells nft, for its listings, that keys are in the host's byte order
		attrs = append(attrs, attr32(unix.NFTA_SET_FLAGS, 0), netlink.Attribute{
			Type: unix.NFTA_SET_USERDATA, Data: userdata.AppendUint32(nil, userdata.NFTNL_UDATA_SET_KEYBYTEORDER, 1),
		})
	case len(s.keys) > 0:
		attrs = append(attrs, attr32(unix.NFTA_SET_FLAGS, 0))
	default: // the user data tells nft, for its listings, that keys are in the network's byte order
		attrs = append(attrs, attr32(unix.NFTA_SET_FLAGS, unix.NFT_SET_INTERVAL), netlink.Attribute{
			Type: unix.NFTA_SET_USERDATA, Data: userdata.AppendUint32(nil, userdata.NFTNL_UDATA_SET_KEYBYTEORDER, 2),
		})
	}
	if s.dynamic {
		attrs = append(attrs, r.nest(unix.NFTA_SET_DESC, attr32(unix.NFTA_SET_DESC_SIZE, room)))
	}
	r.add(unix.NFT_MSG_NEWSET, netlink.Create, attrs...)
	r.addEntries(table, id, s.name, s.entries)

	r.addMembers(table, id, s.name, elements(s.ranges))
}

// addMembers adds members to an interval set. If id is 0 the set is in the kernel's table already; otherwise the transaction
// makes the set, with this id.
func (r *request) addMembers(table string, id uint32, set string, members []nftables.SetElement) {
	for part := range slices.Chunk(members, elementsPerMessage) {
		attrs := []netlink.Attribute{attr(unix.NFTA_SET_ELEM_LIST_TABLE, table), attr(unix.NFTA_SET_ELEM_LIST_SET, set)}
		if id != 0 {
			attrs = append(attrs, attr32(unix.NFTA_SET_ELEM_LIST_SET_ID, id))
		}
		r.add(unix.NFT_MSG_NEWSETELEM, netlink.Create, append(attrs, r.members(part))...)
	}
}

// deleteMembers deletes members of an interval set. If the set lacks one of them the transaction fails.
func (r *request) deleteMembers(table, set string, members []nftables.SetElement) {
	for part := range slices.Chunk(members, elementsPerMessage) {
		r.add(unix.NFT_MSG_DELSETELEM, 0, attr(unix.NFTA_SET_ELEM_LIST_TABLE, table), attr(unix.NFTA_SET_ELEM_LIST_SET, set), r.members(part))
	}
}

// members makes an attribute of members of an interval set.
func (r *request) members(members []nftables.SetElement) netlink.Attribute {
	list := make([]netlink.Attribute, len(members))
	for i, m := range members {
		var attrs []netlink.Attribute
		if m.IntervalEnd {
			attrs = append(attrs, attr32(unix.NFTA_SET_ELEM_FLAGS, unix.NFT_SET_ELEM_INTERVAL_END))
		}
		attrs = append(attrs, r.nest(unix.NFTA_SET_ELEM_KEY, netlink.Attribute{Type: unix.NFTA_DATA_VALUE, Data: m.Key}))
		list[i] = r.nest(unix.NFTA_LIST_ELEM, attrs...)
	}
	return r.nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS, list...)
}

// addEntries adds elements to a set or map of host ports. If id is 0 the set is in the kernel's table
// already; otherwise the transaction makes the set, with this id.
func (r *request) addEntries(table string, id uint32, set string, entries []entry) {
	for part := range slices.Chunk(entries, entriesPerMessage) {
		list := make([]netlink.Attribute, len(part))
		for i, e := range part {
			attrs := []netlink.Attribute{r.value(unix.NFTA_SET_ELEM_KEY, e.key)}
			if e.value != "" {
				attrs = append(attrs, r.value(unix.NFTA_SET_ELEM_DATA, e.value))
			}
			if e.comment != "" {
				attrs = append(attrs, netlink.Attribute{Type: unix.NFTA_SET_ELEM_USERDATA, Data: comment(e.comment)})
			}
			list[i] = r.nest(unix.NFTA_LIST_ELEM, attrs...)
		}
		attrs := []netlink.Attribute{attr(unix.NFTA_SET_ELEM_LIST_TABLE, table), attr(unix.NFTA_SET_ELEM_LIST_SET, set)}
		if id != 0 {
			attrs = append(attrs, attr32(unix.NFTA_SET_ELEM_LIST_SET_ID, id))
		}
		r.add(unix.NFT_MSG_NEWSETELEM, netlink.Create, append(attrs, r.nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS, list...))...)
	}
}

// deleteEntries deletes elements of a set or map of host ports. If the set lacks one of the elements
// the transaction fails.
func (r *request) deleteEntries(table, set string, entries []entry) {
	for part := range slices.Chunk(entries, entriesPerMessage) {
		list := make([]netlink.Attribute, len(part))
		for i, e := range part {
			list[i] = r.nest(unix.NFTA_LIST_ELEM, r.value(unix.NFTA_SET_ELEM_KEY, e.key))
		}
		r.add(unix.NFT_MSG_DELSETELEM, 0, attr(unix.NFTA_SET_ELEM_LIST_TABLE, table),
			attr(unix.NFTA_SET_ELEM_LIST_SET, set), r.nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS, list...))
	}
}

// value makes an attribute of a key or a value.
func (r *request) value(typ uint16, bytes string) netlink.Attribute {
	return r.nest(typ, netlink.Attribute{Type: unix.NFTA_DATA_VALUE, Data: []byte(bytes)})
}

// flushSet deletes all elements of a set.
func (r *request) flushSet(table string, s set) {
	r.add(unix.NFT_MSG_DELSETELEM, 0, attr(unix.NFTA_SET_ELEM_LIST_TABLE, table), attr(unix.NFTA_SET_ELEM_LIST_SET, s.name))
}

// deleteSet deletes a set that no rule uses any more.
func (r *request) deleteSet(table string, s set) {
	r.add(unix.NFT_MSG_DELSET, 0, attr(unix.NFTA_SET_TABLE, table), attr(unix.NFTA_SET_NAME, s.name))
}

// deleteChain deletes a chain that has no rules any more.
func (r *request) deleteChain(table string, c chain) {
	r.add(unix.NFT_MSG_DELCHAIN, 0, attr(unix.NFTA_CHAIN_TABLE, table), attr(unix.NFTA_CHAIN_NAME, c.name))
}

// deleteRules deletes all rules of a chain.
func (r *request) deleteRules(table string, c chain) {
	r.add(unix.NFT_MSG_DELRULE, 0, attr(unix.NFTA_RULE_TABLE, table), attr(unix.NFTA_RULE_CHAIN, c.name))
}

// addChain adds a base chain with policy accept.
func (r *request) addChain(table string, c chain) {
	r.add(unix.NFT_MSG_NEWCHAIN, netlink.Create,
		attr(unix.NFTA_CHAIN_TABLE, table), attr(unix.NFTA_CHAIN_NAME, c.name),
		r.nest(unix.NFTA_CHAIN_HOOK,
			attr32(unix.NFTA_HOOK_HOOKNUM, uint32(c.hook)), attr32(unix.NFTA_HOOK_PRIORITY, uint32(c.priority))),
		attr32(unix.NFTA_CHAIN_POLICY, uint32(nftables.ChainPolicyAccept)), attr(unix.NFTA_CHAIN_TYPE, string(c.typ)))
}

// addRules appends a chain's rules to it.
func (r *request) addRules(table string, c chain) {
	for _, ru := range c.rules {
		list := make([]netlink.Attribute, len(ru.exprs))
		for i, e := range ru.exprs {
			list[i] = netlink.Attribute{Type: unix.NFTA_LIST_ELEM | unix.NLA_F_NESTED, Data: r.expression(e)}
		}
		attrs := []netlink.Attribute{
			attr(unix.NFTA_RULE_TABLE, table), attr(unix.NFTA_RULE_CHAIN, c.name),
			r.nest(unix.NFTA_RULE_EXPRESSIONS, list...),
		}
		if ru.comment != "" {
			attrs = append(attrs, netlink.Attribute{Type: unix.NFTA_RULE_USERDATA, Data: comment(ru.comment)})
		}
		r.add(unix.NFT_MSG_NEWRULE, netlink.Create|netlink.Append, attrs...)
	}
}

// expression encodes an expression: the inverse of the function expression.
func (r *request) expression(e expr.Any) []byte {
	if m, ok := e.(*masqTo); ok {
		return r.encode([]netlink.Attribute{
			attr(unix.NFTA_EXPR_NAME, "masq"),
			r.nest(unix.NFTA_EXPR_DATA, attr32(unix.NFTA_MASQ_FLAGS, m.flags),
				attr32(unix.NFTA_MASQ_REG_PROTO_MIN, m.min), attr32(unix.NFTA_MASQ_REG_PROTO_MAX, m.max)),
		})
	}
	if w, ok := e.(*writeAddress); ok {
		attrs := []netlink.Attribute{
			attr32(unix.NFTA_PAYLOAD_SREG, w.register), attr32(unix.NFTA_PAYLOAD_BASE, unix.NFT_PAYLOAD_NETWORK_HEADER),
			attr32(unix.NFTA_PAYLOAD_OFFSET, w.offset), attr32(unix.NFTA_PAYLOAD_LEN, w.size),
			attr32(unix.NFTA_PAYLOAD_CSUM_FLAGS, unix.NFT_PAYLOAD_L4CSUM_PSEUDOHDR),
		}
		if w.header {
			attrs = append(attrs, attr32(unix.NFTA_PAYLOAD_CSUM_TYPE, unix.NFT_PAYLOAD_CSUM_INET), attr32(unix.NFTA_PAYLOAD_CSUM_OFFSET, sumAt))
		}
		return r.encode([]netlink.Attribute{attr(unix.NFTA_EXPR_NAME, "payload"), r.nest(unix.NFTA_EXPR_DATA, attrs...)})
	}
	if w, ok := e.(*writeBack); ok {
		return r.encode([]netlink.Attribute{
			attr(unix.NFTA_EXPR_NAME, "payload"),
			r.nest(unix.NFTA_EXPR_DATA, attr32(unix.NFTA_PAYLOAD_SREG, w.register),
				attr32(unix.NFTA_PAYLOAD_BASE, unix.NFT_PAYLOAD_TRANSPORT_HEADER),
				attr32(unix.NFTA_PAYLOAD_OFFSET, w.offset), attr32(unix.NFTA_PAYLOAD_LEN, w.size)),
		})
	}
	if o, ok := e.(*resetOption); ok {
		return r.encode([]netlink.Attribute{
			attr(unix.NFTA_EXPR_NAME, "exthdr"),
			r.nest(unix.NFTA_EXPR_DATA, netlink.Attribute{Type: unix.NFTA_EXTHDR_TYPE, Data: []byte{o.kind}},
				attr32(unix.NFTA_EXTHDR_OP, unix.NFT_EXTHDR_OP_TCPOPT)),
		})
	}
	raw, err := expr.Marshal(unix.NFPROTO_INET, e)
	r.fail(err)
	return raw
}

// commit sends the transaction by a socket. If that fails the caller has to close the
// socket, because unread answers may be left in it.
func (r *request) commit(c *netlink.Conn) error {
	if r.err != nil {
		return r.err
	}
	if err := sendBatch(c, r.messages...); err != nil {
		return err
	}
	for range r.messages {
		if err := c.SetReadDeadline(time.Now().Add(unready)); err != nil {
			return err
		}
		if _, err := c.Receive(); err != nil {
			return err // the first error is the reason; later errors follow from the first
		}
	}
	return nil
}

// sendBatch sends messages as one transaction. When it returns, the kernel has carried the
// transaction out, or has refused it: the kernel's answers tell which.
func sendBatch(c *netlink.Conn, messages ...netlink.Message) error {
	// struct nfgenmsg; its resource id names the subsystem that the batch is for
	whose := binary.BigEndian.AppendUint16([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0}, unix.NFNL_SUBSYS_NFTABLES)
	edge := func(typ netlink.HeaderType) netlink.Message {
		return netlink.Message{Header: netlink.Header{Type: typ, Flags: netlink.Request}, Data: whose}
	}
	if err := c.SetDeadline(time.Now().Add(unready)); err != nil {
		return err
	}
	batch := append([]netlink.Message{edge(unix.NFNL_MSG_BATCH_BEGIN)}, messages...)
	_, err := c.SendMessages(append(batch, edge(unix.NFNL_MSG_BATCH_END)))
	return err
}
