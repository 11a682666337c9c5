package nft

import (
	"encoding/binary"
	"fmt"

	"github.com/google/nftables/expr"
)

// Every rule computes in this register, 16 bytes wide (NFT_REG_1).
const reg = 1

// dropGroup drops what comes in ("iifgroup") or goes out ("oifgroup") by a link
// whose group is in [low, high].
//
//	iifgroup 1073741826-1073742847 drop
func dropGroup(word string, low, high uint32) rule {
	key := expr.MetaKeyIIFGROUP
	if word == "oifgroup" {
		key = expr.MetaKeyOIFGROUP
	}
	return rule{
		text: fmt.Sprintf("%s %d-%d drop", word, low, high),
		exprs: []expr.Any{
			&expr.Meta{Key: key, Register: reg},
			// A group is in the host's byte order, and ranges compare bytes.
			&expr.Byteorder{SourceRegister: reg, DestRegister: reg, Op: expr.ByteorderHton, Len: 4, Size: 4},
			&expr.Range{
				Op: expr.CmpOpEq, Register: reg,
				FromData: binary.BigEndian.AppendUint32(nil, low),
				ToData:   binary.BigEndian.AppendUint32(nil, high),
			},
			&expr.Verdict{Kind: expr.VerdictDrop},
		},
	}
}

// dropSpoofed drops what comes in by a link of a group with a source that is not
// behind that link: a pod speaks for itself alone. It stands before connection
// tracking, so that it leaves no entries in another's name either. What somebody
// routes to a pod on purpose comes from it as well.
//
//	iifgroup 1073741824 fib saddr . iif oif missing drop
func dropSpoofed(group uint32) rule {
	return rule{
		text: fmt.Sprintf("iifgroup %d fib saddr . iif oif missing drop", group),
		exprs: []expr.Any{
			&expr.Meta{Key: expr.MetaKeyIIFGROUP, Register: reg},
			&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: binary.NativeEndian.AppendUint32(nil, group)},
			&expr.Fib{Register: reg, ResultOIF: true, FlagSADDR: true, FlagIIF: true, FlagPRESENT: true},
			&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: make([]byte, 4)},
			&expr.Verdict{Kind: expr.VerdictDrop},
		},
	}
}

// masquerade hides pods from those outside.
//
//	ip saddr @pools4 ip daddr != @pools4 ip daddr != @excluded4 masquerade fully-random
//
// What the host sends itself has no pool's source address and stays as it is;
// what is for the host does not pass postrouting. Ports are chosen at random
// since two flows that choose one at once lose a packet otherwise.
func masquerade(f family) rule {
	pools, excluded := "pools"+f.suffix, "excluded"+f.suffix
	exprs := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: reg},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{f.proto}},
	}
	exprs = append(exprs, f.match(f.saddr, pools, false)...)
	exprs = append(exprs, f.match(f.daddr, pools, true)...)
	exprs = append(exprs, f.match(f.daddr, excluded, true)...)
	exprs = append(exprs, &expr.Masq{FullyRandom: true})
	return rule{
		text: fmt.Sprintf("%[1]s saddr @%[2]s %[1]s daddr != @%[2]s %[1]s daddr != @%[3]s masquerade fully-random",
			f.word, pools, excluded),
		exprs: exprs,
	}
}

// match goes on if the address at offset is in the set, or is not.
func (f family) match(offset uint32, set string, not bool) []expr.Any {
	return []expr.Any{
		&expr.Payload{
			OperationType: expr.PayloadLoad, DestRegister: reg,
			Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: f.datatype.Bytes,
		},
		&expr.Lookup{SourceRegister: reg, SetName: set, Invert: not},
	}
}
