package rtnl

import (
	"encoding/binary"

	"github.com/berth-net/berth/internal/stamp"

	"golang.org/x/sys/unix"
)

// Where the filter finds what it looks at, in bytes (linux/netlink.h,
// linux/rtnetlink.h).
const (
	atType     = 4
	atFlags    = 6
	atProtocol = unix.SizeofNlMsghdr + 5 // rtm_protocol
	atLinkAttr = unix.SizeofNlMsghdr + unix.SizeofIfInfomsg

	// findAttribute loads where the attribute of type X is, from offset A on, or
	// 0 (SKF_AD_OFF + SKF_AD_NLATTR, linux/filter.h).
	findAttribute = 0xfffff000 + 12
)

// Instructions of the filter (classic BPF).
const (
	loadByte   = unix.BPF_LD | unix.BPF_B | unix.BPF_ABS
	loadHalf   = unix.BPF_LD | unix.BPF_H | unix.BPF_ABS
	loadFind   = unix.BPF_LD | unix.BPF_B | unix.BPF_ABS
	loadBehind = unix.BPF_LD | unix.BPF_IND // at X + K
	setA       = unix.BPF_LD | unix.BPF_IMM
	setX       = unix.BPF_LDX | unix.BPF_IMM
	keep       = unix.BPF_ST
	loadKept   = unix.BPF_LD | unix.BPF_MEM
	copyToX    = unix.BPF_MISC | unix.BPF_TAX
	ifEqual    = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	ifSet      = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
	answer     = unix.BPF_RET | unix.BPF_K
)

// monitorFilter lets through what is about links that have the prefix in their
// names or are in the live group, whatever they are called, but for changes of
// those in the coming and in the cut group; deletions of routes with Berth's protocol; and routes that replace
// others.
func monitorFilter(groups stamp.Groups, prefix string) []unix.SockFilter {
	const accept, drop = 1000, 1001 // targets; else how many to skip
	type step struct {
		code     uint16
		k        uint32
		yes, not int
	}
	// Netlink's numbers are in the host's byte order, and BPF loads big ones.
	half := func(n uint16) uint32 {
		return uint32(binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, n)))
	}
	word := func(n uint32) uint32 { return binary.BigEndian.Uint32(binary.NativeEndian.AppendUint32(nil, n)) }

	program := []step{
		{code: loadHalf, k: atType},
		{ifEqual, half(unix.RTM_NEWLINK), 7, 0},  // to the group
		{ifEqual, half(unix.RTM_DELLINK), 6, 0},  // there, too
		{ifEqual, half(unix.RTM_DELROUTE), 3, 0}, // to the protocol
		{ifEqual, half(unix.RTM_NEWROUTE), 0, drop},
		{code: loadHalf, k: atFlags},
		{ifSet, half(unix.NLM_F_REPLACE), accept, drop},
		{code: loadByte, k: atProtocol},
		{ifEqual, stamp.Protocol, accept, drop},
		// A link: by its group...
		{code: setA, k: atLinkAttr},
		{code: setX, k: unix.IFLA_GROUP},
		{code: loadFind, k: findAttribute},
		{code: copyToX},
		{code: loadBehind | unix.BPF_W, k: unix.SizeofNlAttr},
		{ifEqual, word(groups.Live()), accept, 0},
		// ... or else by its name, if it is deleted or in no group that tells enough.
		{code: keep},
		{code: loadHalf, k: atType},
		{ifEqual, half(unix.RTM_DELLINK), 3, 0},
		{code: loadKept},
		{ifEqual, word(groups.Coming()), drop, 0},
		{ifEqual, word(groups.Cut()), drop, 0},
		{code: setA, k: atLinkAttr},
		{code: setX, k: unix.IFLA_IFNAME},
		{code: loadFind, k: findAttribute},
		{ifEqual, 0, drop, 0},
		{code: copyToX},
	}
	for i := range len(prefix) {
		program = append(program,
			step{code: loadBehind | unix.BPF_B, k: uint32(unix.SizeofNlAttr + i)},
			step{ifEqual, uint32(prefix[i]), 0, drop})
	}
	end := len(program)
	program = append(program, step{code: answer, k: 1<<32 - 1}, step{code: answer})
	filter := make([]unix.SockFilter, len(program))
	for i, s := range program {
		jump := func(to int) uint8 {
			if to >= accept {
				to = end + to - accept - i - 1
			}
			return uint8(to)
		}
		filter[i] = unix.SockFilter{Code: s.code, K: s.k, Jt: jump(s.yes), Jf: jump(s.not)}
	}
	return filter
}
