package nft

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/stamp"
)

var errTooMany = errors.New("too many elements")

// Sender describes the packet that Barriers follows: the packet comes by the host end of a pod's link,
// from an address of the pools, begins a connection, and leaves by one of the uplinks.
type Sender struct {
	Instance string // of the agent, whose links' names begin with stamp.Links; "": not known
	Pools    []netip.Prefix
	Uplinks  []string                        // names; none: not known
	Name     func(index int) (string, error) // returns the name of the link with an index
}

// loaded is what a register has: which field of the packet, and which bits of it.
type loaded struct {
	field  field
	mask   []byte // nil: all
	length int    // how many bytes of the field's beginning the rule loaded; 0: all
}

type field int

const (
	something field = iota // a field that the judge does not know
	inName
	outName
	inIndex
	outIndex
	protocolFamily
	source
	destination
	ctState
	ctStatus
)

// ctNew is the bit of a connection's first packet in a connection's state, in nft as in
// iptables (NF_CT_STATE_BIT, XT_CONNTRACK_STATE_BIT).
const ctNew = 8

// ipsDstNAT is the status bit of a redirected connection (IPS_DST_NAT). The packet that a judge
// follows, on its way to somewhere beyond the node, is of no redirected connection.
const ipsDstNAT = 1 << 5

// matcher goes through the expressions of one rule.
type matcher struct {
	judge   *judge
	rule    *nftables.Rule
	regs    map[uint32]loaded
	answers []answer
}

// so returns whether all matches so far are true.
func (m *matcher) so() answer {
	if len(m.answers) == 0 {
		return yes
	}
	return slices.Min(m.answers)
}

// meets follows one expression. An expression that is not about the packet, such as a counter,
// changes nothing.
func (m *matcher) meets(e expr.Any) {
	switch e := e.(type) {
	case *expr.Meta:
		if !e.SourceRegister {
			m.regs[e.Register] = loaded{field: metaFields[e.Key]}
		}
	case *expr.Payload:
		if e.OperationType == expr.PayloadLoad {
			m.regs[e.DestRegister] = m.payload(e)
		}
	case *expr.Ct:
		if !e.SourceRegister {
			m.regs[e.Register] = loaded{field: map[expr.CtKey]field{expr.CtKeySTATE: ctState, expr.CtKeySTATUS: ctStatus}[e.Key]}
		}
	case *expr.Bitwise:
		r := m.regs[e.SourceRegister]
		if r.mask != nil || len(bytes.Trim(e.Xor, "\x00")) > 0 {
			r.field = something
		}
		r.mask = e.Mask
		m.regs[e.DestRegister] = r
	case *expr.Cmp:
		m.answers = append(m.answers, m.compare(e))
	case *expr.Lookup:
		m.answers = append(m.answers, m.lookUp(e))
	case *expr.Match:
		if e.Name != "comment" {
			m.answers = append(m.answers, conntrackMatch(e))
		}
	case *expr.Counter, *expr.Log, *expr.Objref, *expr.Immediate, *expr.Target, *expr.Notrack, *expr.FlowOffload, *expr.Dynset:
	default: // a limit, a quota, a load that the judge does not follow
		m.answers = append(m.answers, maybe)
	}
}

var metaFields = map[expr.MetaKey]field{
	expr.MetaKeyIIFNAME: inName, expr.MetaKeyOIFNAME: outName, expr.MetaKeyIIF: inIndex, expr.MetaKeyOIF: outIndex,
	expr.MetaKeyNFPROTO: protocolFamily,
}

// payload says what a rule loads of the packet: an address, or only the beginning of an address if the
// rule compares it with a network whose length is a multiple of 8.
func (m *matcher) payload(e *expr.Payload) loaded {
	f := ipv4
	if m.judge.ipv6 {
		f = ipv6
	}
	size := f.daddr - f.saddr
	if e.Base == expr.PayloadBaseNetworkHeader && e.Len <= size {
		switch e.Offset {
		case f.saddr:
			return loaded{field: source, length: int(e.Len)}
		case f.daddr:
			return loaded{field: destination, length: int(e.Len)}
		}
	}
	return loaded{}
}

func (m *matcher) compare(e *expr.Cmp) answer {
	r := m.regs[e.Register]
	var equal answer
	switch r.field {
	case ctState, ctStatus:
		equal = m.bits(r, e.Data)
	default:
		equal = m.equal(r, e.Data)
	}
	switch e.Op {
	case expr.CmpOpEq:
		return equal
	case expr.CmpOpNeq:
		return not(equal)
	}
	return maybe
}

// bits answers whether the masked state or status of the connection is data.
func (m *matcher) bits(r loaded, data []byte) answer {
	mask, want := ^uint32(0), native(data)
	if r.mask != nil {
		mask = native(r.mask)
	}
	if r.field == ctState {
		return sure(ctNew&mask == want)
	}
	if mask == ipsDstNAT {
		return sure(want == 0)
	}
	return maybe
}

// native reads a number of the kernel's own byte order.
func native(b []byte) uint32 {
	if len(b) != 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(b)
}

func sure(b bool) answer {
	if b {
		return yes
	}
	return no
}

// equal answers whether a field of the packet is data.
func (m *matcher) equal(r loaded, data []byte) answer {
	switch r.field {
	case inName:
		return m.judge.sender.comesBy(string(data))
	case outName:
		return m.judge.sender.leavesBy(string(data))
	case inIndex, outIndex:
		name, err := m.judge.sender.Name(int(native(data)))
		if err != nil {
			return maybe
		}
		if r.field == inIndex {
			return m.judge.sender.comesBy(name + "\x00")
		}
		return m.judge.sender.leavesBy(name + "\x00")
	case protocolFamily:
		return sure(len(data) == 1 && (data[0] == unix.NFPROTO_IPV6) == m.judge.ipv6)
	case source, destination:
		if network, ok := m.network(r, data); ok {
			return m.judge.sender.within(network, r.field == destination)
		}
	}
	return maybe
}

// comesBy answers whether the link that the packet comes in by has a name (see literal).
func (s Sender) comesBy(raw string) answer {
	pods := "b"
	if s.Instance != "" {
		pods = stamp.Links(s.Instance)
	}
	name, exact := literal(raw)
	switch {
	case exact && stamp.IsLink(name) && strings.HasPrefix(name, pods), !exact && len(name) > len(pods) && strings.HasPrefix(name, pods):
		return maybe // the name may be that of the pod's link
	case !exact && strings.HasPrefix(pods, name):
		return yes
	}
	return no
}

// leavesBy answers whether the uplink has a name (see literal).
func (s Sender) leavesBy(raw string) answer {
	name, exact := literal(raw)
	if len(s.Uplinks) == 0 {
		return min(maybe, sure(name != "lo"))
	}
	n := 0
	for _, up := range s.Uplinks {
		if up == name || !exact && strings.HasPrefix(up, name) {
			n++
		}
	}
	switch n {
	case 0:
		return no
	case len(s.Uplinks):
		return yes
	}
	return maybe
}

// literal reads a link's name as rules have it: with a NUL behind a whole name, and without a NUL
// behind the beginning of names, as in br-*.
func literal(raw string) (name string, exact bool) {
	name, _, exact = strings.Cut(raw, "\x00")
	return name, exact
}

// network returns the network with which a rule compares an address.
func (m *matcher) network(r loaded, data []byte) (netip.Prefix, bool) {
	size := 4
	if m.judge.ipv6 {
		size = 16
	}
	if len(data) > size || len(data) != r.length {
		return netip.Prefix{}, false
	}
	addr, ok := netip.AddrFromSlice(append(slices.Clone(data), make([]byte, size-len(data))...))
	bits := 8 * len(data)
	if r.mask != nil {
		ones, of := net.IPMask(r.mask).Size()
		if of != bits { // a mask with holes is no network
			return netip.Prefix{}, false
		}
		bits = ones
	}
	return netip.PrefixFrom(addr, bits), ok
}

// within answers whether the packet's source is in a network, or with destination whether the packet's
// destination is. The destination is in no pool.
func (s Sender) within(network netip.Prefix, destination bool) answer {
	pool := s.Pools[0] // Barriers gives each judge a sender with one pool
	switch {
	case network.Bits() == 0:
		return yes
	case destination:
		return maybe
	case !network.Overlaps(pool):
		return no
	}
	if network.Bits() <= pool.Bits() {
		return yes
	}
	return maybe
}

// lookUp answers whether a field is in a set.
func (m *matcher) lookUp(e *expr.Lookup) answer {
	r := m.regs[e.SourceRegister]
	found := maybe
	if slices.Contains([]field{inName, outName, inIndex, outIndex, ctState}, r.field) {
		if elements, err := m.judge.elements(m.rule.Table, e); err == nil {
			found = no
			for _, el := range elements {
				found = max(found, m.element(r, el.Key))
			}
		}
	}
	if e.Invert {
		return not(found)
	}
	return found
}

func (m *matcher) element(r loaded, key []byte) answer {
	if r.field == ctState {
		return sure(native(key) == ctNew)
	}
	return m.equal(r, key)
}

// conntrackMatch answers for iptables' match of a connection's state, and for no other match.
func conntrackMatch(e *expr.Match) answer {
	var base *xt.ConntrackMtinfoBase
	var states uint16
	switch info := e.Info.(type) {
	case *xt.ConntrackMtinfo3:
		base, states = &info.ConntrackMtinfoBase, info.StateMask
	case *xt.ConntrackMtinfo2:
		base, states = &info.ConntrackMtinfoBase, info.StateMask
	case *xt.ConntrackMtinfo1:
		base, states = &info.ConntrackMtinfoBase, uint16(info.StateMask)
	default:
		return maybe
	}
	if base.MatchFlags&uint16(xt.ConntrackState) == 0 {
		return maybe
	}
	has := states&ctNew != 0
	if base.InvertFlags&uint16(xt.ConntrackState) != 0 {
		has = !has
	}
	if has && base.MatchFlags&^uint16(xt.ConntrackState|xt.ConntrackStateAlias) != 0 {
		return maybe
	}
	return sure(has)
}
