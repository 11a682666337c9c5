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
	// 0 (SKF_AD_OFF + SKF_AD_NLATTR, linux/filter.h); findNested the same in the
	// attribute at A.
	findAttribute = 0xfffff000 + 12
	findNested    = 0xfffff000 + 16
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

// step is an instruction of the filter. yes and not say how many to skip.
type step struct {
	code     uint16
	k        uint32
	yes, not int
}

// Targets in place of how many to skip.
const accept, drop = 1000, 1001

// monitorFilter lets through what is about links that have the prefix in their names,
// are in the live group, or have the instance's alias or second name, whatever else one
// message has changed, but for changes of those in the coming and in the cut group; deletions of
// routes with Berth's protocol; and routes that replace others.
func monitorFilter(groups stamp.Groups, prefix string) []unix.SockFilter {
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
		// ... or else by what ADD gave it, if it is deleted or in no group that tells
		// enough. The second name is the first of those that it has besides.
		{code: keep},
		{code: loadHalf, k: atType},
		{ifEqual, half(unix.RTM_DELLINK), 3, 0},
		{code: loadKept},
		{ifEqual, word(groups.Coming()), drop, 0},
		{ifEqual, word(groups.Cut()), drop, 0},
	}
	program = append(program, acceptText(prefix, unix.IFLA_IFNAME)...)
	program = append(program, acceptText(stamp.Aliases(prefix), unix.IFLA_IFALIAS)...)
	program = append(program, acceptText(stamp.AltName(prefix), unix.IFLA_PROP_LIST, unix.IFLA_ALT_IFNAME)...)
	program = append(program, step{code: answer}) // none of these
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

// acceptText accepts a link of which an attribute begins with a text: the one at the
// end of the way, which begins among the link's own. Behind its steps is who has it not.
func acceptText(begin string, way ...uint32) []step {
	steps := []step{{code: setA, k: atLinkAttr}}
	find := uint32(findAttribute)
	for _, attribute := range way {
		steps = append(steps, step{code: setX, k: attribute}, step{code: loadFind, k: find}, step{code: ifEqual, yes: drop})
		find = findNested
	}
	steps = append(steps, step{code: copyToX})
	for i := range len(begin) {
		steps = append(steps,
			step{code: loadBehind | unix.BPF_B, k: uint32(unix.SizeofNlAttr + i)},
			step{code: ifEqual, k: uint32(begin[i]), not: drop})
	}
	steps = append(steps, step{code: answer, k: 1<<32 - 1})
	for i := range steps { // to drop it is to leave it to what is behind
		for _, to := range []*int{&steps[i].yes, &steps[i].not} {
			if *to == drop {
				*to = len(steps) - i - 1
			}
		}
	}
	return steps
}
