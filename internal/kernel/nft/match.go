package nft

import (
	"encoding/binary"
	"fmt"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// reg is the register that every rule computes in, 16 bytes wide (NFT_REG_1).
const reg = 1

// enters lets a rule go on if the packet came in by a link of a group.
func enters(group uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFGROUP, Register: reg},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: binary.NativeEndian.AppendUint32(nil, group)},
	}
}

// leavesBy lets a rule go on if the packet leaves by a link of a group.
func leavesBy(group uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyOIFGROUP, Register: reg},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: binary.NativeEndian.AppendUint32(nil, group)},
	}
}

// ofNothing lets a rule go on if a packet belongs to no connection.
func ofNothing() []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: reg},
		mask(expr.CtStateBitINVALID | expr.CtStateBitUNTRACKED),
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: make([]byte, 4)},
	}
}

// mask clears all but the given bits of the register's first 4 bytes, which are in the
// host's byte order.
func mask(bits uint32) expr.Any {
	return &expr.Bitwise{
		SourceRegister: reg, DestRegister: reg, Len: 4,
		Mask: binary.NativeEndian.AppendUint32(nil, bits), Xor: make([]byte, 4),
	}
}

// leaves lets a rule go on if a packet's source is in the pools and its destination is
// neither in the pools nor in the excluded CIDRs. leaves returns the text of the expressions, too.
func (f family) leaves() (words string, exprs []expr.Any) {
	pools, excluded := "pools"+f.suffix, "excluded"+f.suffix
	exprs = f.protocol()
	exprs = append(exprs, f.match(f.saddr, pools, false)...)
	exprs = append(exprs, f.match(f.daddr, pools, true)...)
	exprs = append(exprs, f.match(f.daddr, excluded, true)...)
	return fmt.Sprintf("%[1]s saddr @%[2]s %[1]s daddr != @%[2]s %[1]s daddr != @%[3]s", f.word, pools, excluded), exprs
}

// protocol lets a rule go on if a packet is of the family.
func (f family) protocol() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: reg},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{f.proto}},
	}
}

// load loads the first bytes of the address at offset in the network header. It ends the
// rule if the packet is not of the family.
func (f family) load(offset, bytes uint32) []expr.Any {
	return append(f.protocol(), f.address(offset, bytes))
}

func (f family) address(offset, bytes uint32) expr.Any {
	return &expr.Payload{
		OperationType: expr.PayloadLoad, DestRegister: reg,
		Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: bytes,
	}
}

// match lets a rule go on if the address at offset is in the set or, with not, if the address is not in
// the set.
func (f family) match(offset uint32, set string, not bool) []expr.Any {
	return []expr.Any{
		f.address(offset, f.datatype.Bytes),
		&expr.Lookup{SourceRegister: reg, SetName: set, Invert: not},
	}
}

// syn lets a rule go on if a TCP segment has the flag SYN (op CmpOpNeq), or if the segment lacks the
// flag (op CmpOpEq).
//
//	tcp flags syn
func syn(op expr.CmpOp) []expr.Any {
	return append(tcpBits(13, 2), &expr.Cmp{Op: op, Register: reg, Data: []byte{0}})
}

// tcpBits loads those bits of the byte at offset in the TCP header that the mask has. It ends the rule
// if the packet is not TCP.
func tcpBits(offset uint32, mask byte) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{unix.IPPROTO_TCP}},
		&expr.Payload{
			OperationType: expr.PayloadLoad, DestRegister: reg,
			Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 1,
		},
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 1, Mask: []byte{mask}, Xor: []byte{0}},
	}
}

// chunkAt is where the type of an SCTP packet's first chunk is, in bytes (RFC 9260, 3). initChunk is the
// type of an INIT, which begins an association and is never a later chunk (RFC 9260, 4.3).
const chunkAt, initChunk = 12, 1

// loadChunk loads the type of the first chunk of an SCTP packet.
func loadChunk() expr.Any {
	return &expr.Payload{OperationType: expr.PayloadLoad, DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: chunkAt, Len: 1}
}

// notInit lets a rule go on if an SCTP packet does not begin an association. notInit returns the text of
// the expressions, too.
func notInit() (words string, exprs []expr.Any) {
	return fmt.Sprintf("meta l4proto sctp @th,%d,8 != %d", 8*chunkAt, initChunk),
		append(carriedBy(unix.IPPROTO_SCTP), loadChunk(), &expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: []byte{initChunk}})
}

// isFragment lets a rule go on if a packet of the family is a fragment. It returns the text of the
// expressions, too.
func (f family) isFragment() (words string, exprs []expr.Any) {
	if f.proto == ipv4.proto {
		// more fragments, or an offset
		return "ip frag-off & 0x3fff != 0", []expr.Any{
			&expr.Payload{
				OperationType: expr.PayloadLoad, DestRegister: reg,
				Base: expr.PayloadBaseNetworkHeader, Offset: 6, Len: 2,
			},
			&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 2, Mask: []byte{0x3f, 0xff}, Xor: []byte{0, 0}},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: []byte{0, 0}},
		}
	}
	return "exthdr frag exists", []expr.Any{
		&expr.Exthdr{DestRegister: reg, Type: unix.IPPROTO_FRAGMENT, Len: 1, Flags: unix.NFT_EXTHDR_F_PRESENT, Op: expr.ExthdrOpIpv6},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{1}},
	}
}
