package rtnl

import (
	"encoding/binary"
	"slices"

	"github.com/berth-net/berth/internal/stamp"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// These are the offsets, in bytes, of the fields that the filter looks at (linux/netlink.h,
// linux/rtnetlink.h).
const (
	atType     = 4
	atFlags    = 6
	atProtocol = unix.SizeofNlMsghdr + 5 // rtm_protocol
	atFamily   = unix.SizeofNlMsghdr     // ifa_family
	atScope    = unix.SizeofNlMsghdr + 3 // ifa_scope
	atLinkAttr = unix.SizeofNlMsghdr + unix.SizeofIfInfomsg
	atConfAttr = unix.SizeofNlMsghdr + sizeofNetconfmsg
	atHandle   = unix.SizeofNlMsghdr + atTcHandle
	atInfo     = unix.SizeofNlMsghdr + atTcInfo
)

// steps are instructions of the filter, one after the other.
type steps []bpf.Instruction

// accept and drop end the filter: the socket gets the whole message, or nothing of it.
var accept, drop = steps{bpf.RetConstant{Val: 1<<32 - 1}}, steps{bpf.RetConstant{}}

// when returns steps that run the steps then if a test of register A holds, and pass over then if not.
// then has at most 255 instructions, as a jump goes no further.
func when(test bpf.JumpTest, value uint32, then steps) steps {
	return append(steps{bpf.JumpIf{Cond: test, Val: value, SkipFalse: uint8(len(then))}}, then...)
}

// load puts bytes of the message into A.
func load(at uint32, size int) steps { return steps{bpf.LoadAbsolute{Off: at, Size: size}} }

// loadBehind puts bytes into A that stand behind the head of the attribute at X.
func loadBehind(at, size int) steps {
	return steps{bpf.LoadIndirect{Off: uint32(unix.SizeofNlAttr + at), Size: size}}
}

// find puts into A where an attribute is; 0: there is none. The filter looks for the attribute from A
// on, or inside the attribute at A if nested.
func find(attribute uint32, nested bool) steps {
	how := bpf.ExtNetlinkAttr
	if nested {
		how = bpf.ExtNetlinkAttrNested
	}
	return steps{bpf.LoadConstant{Dst: bpf.RegX, Val: attribute}, bpf.LoadExtension{Num: how}}
}

// monitorFilter lets through messages about links whose names begin with the prefix, that are in the
// live group, or that have the instance's alias or second name, no matter what else about the link has
// changed. It drops changes of links in the coming group and in the cut group. It also lets through
// deletions of routes with Berth's protocol; routes that replace others; limits that Shape and Police
// make, and their end; news of addresses, but for IPv6 link-local ones, which
// each link gets; and news that forwarding is off.
func monitorFilter(groups stamp.Groups, prefix string) ([]bpf.RawInstruction, error) {
	// Netlink's numbers are in the host's byte order, and BPF loads numbers as big-endian.
	half := func(n uint16) uint32 {
		return uint32(binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, n)))
	}
	word := func(n uint32) uint32 { return binary.BigEndian.Uint32(binary.NativeEndian.AppendUint32(nil, n)) }

	replaces := when(bpf.JumpBitsSet, half(unix.NLM_F_REPLACE), accept)
	berths := when(bpf.JumpEqual, stamp.Protocol, accept)
	unforwarded := slices.Concat(
		steps{bpf.LoadConstant{Dst: bpf.RegA, Val: atConfAttr}},
		find(netconfForwarding, false),
		when(bpf.JumpEqual, 0, drop), // the message is about something else
		steps{bpf.TAX{}},
		loadBehind(0, 4),
		when(bpf.JumpEqual, 0, accept),
		drop)
	shapes := slices.Concat(load(atHandle, 4), when(bpf.JumpEqual, word(shaper), accept), drop)
	// A deleted clsact takes its filters with it, and the kernel sends no news of these filters.
	shapesEnd := slices.Concat(load(atHandle, 4), when(bpf.JumpEqual, word(clsactHandle), accept), shapes)
	polices := slices.Concat(load(atInfo, 4), when(bpf.JumpEqual, word(policeInfo()), accept), drop)
	return bpf.Assemble(slices.Concat(
		load(atType, 2),
		when(bpf.JumpEqual, half(unix.RTM_NEWADDR), slices.Concat(
			load(atFamily, 1), when(bpf.JumpEqual, unix.AF_INET, accept),
			load(atScope, 1), when(bpf.JumpEqual, unix.RT_SCOPE_LINK, drop), accept)),
		when(bpf.JumpEqual, half(unix.RTM_NEWNETCONF), unforwarded),
		when(bpf.JumpEqual, half(unix.RTM_NEWROUTE), slices.Concat(load(atFlags, 2), replaces, drop)),
		when(bpf.JumpEqual, half(unix.RTM_DELROUTE), slices.Concat(load(atProtocol, 1), berths, drop)),
		when(bpf.JumpEqual, half(unix.RTM_NEWQDISC), shapes),
		when(bpf.JumpEqual, half(unix.RTM_DELQDISC), shapesEnd),
		when(bpf.JumpEqual, half(unix.RTM_NEWTFILTER), polices),
		when(bpf.JumpEqual, half(unix.RTM_DELTFILTER), polices),
		when(bpf.JumpNotEqual, half(unix.RTM_NEWLINK), when(bpf.JumpNotEqual, half(unix.RTM_DELLINK), drop)),
		// A link: by its group...
		steps{bpf.LoadConstant{Dst: bpf.RegA, Val: atLinkAttr}},
		find(unix.IFLA_GROUP, false),
		steps{bpf.TAX{}},
		loadBehind(0, 4),
		when(bpf.JumpEqual, word(groups.Live()), accept),
		// ... or else by what ADD gave the link, if the link is deleted or in no group that tells
		// enough. The second name is the first of the link's alternative names.
		steps{bpf.StoreScratch{Src: bpf.RegA}},
		load(atType, 2),
		when(bpf.JumpNotEqual, half(unix.RTM_DELLINK), slices.Concat(
			steps{bpf.LoadScratch{Dst: bpf.RegA}},
			when(bpf.JumpEqual, word(groups.Coming()), drop),
			when(bpf.JumpEqual, word(groups.Cut()), drop))),
		acceptText(prefix, unix.IFLA_IFNAME),
		acceptText(stamp.Tunnel(prefix[1:]), unix.IFLA_IFNAME),
		acceptText(stamp.Aliases(prefix), unix.IFLA_IFALIAS),
		acceptText(stamp.AltName(prefix), unix.IFLA_PROP_LIST, unix.IFLA_ALT_IFNAME),
		drop))
}

// acceptText accepts a link if an attribute begins with a text. way lists the types of the attributes
// that lead there, from one of the link's own attributes inwards. For a link without such an attribute
// the filter goes on behind these steps.
func acceptText(begin string, way ...uint32) steps {
	then := accept
	for i := len(begin) - 1; i >= 0; i-- {
		then = slices.Concat(loadBehind(i, 1), when(bpf.JumpEqual, uint32(begin[i]), then))
	}
	then = append(steps{bpf.TAX{}}, then...)
	for i, attribute := range slices.Backward(way) {
		then = slices.Concat(find(attribute, i > 0), when(bpf.JumpNotEqual, 0, then))
	}
	return append(steps{bpf.LoadConstant{Dst: bpf.RegA, Val: atLinkAttr}}, then...)
}
