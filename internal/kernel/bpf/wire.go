package bpf

import (
	"slices"
	"strconv"

	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// These are the offsets of a packet's fields that a program reads (struct __sk_buff, linux/bpf.h),
// in bytes.
const (
	atLen     = 0
	atGSOSegs = 164 // how many segments the kernel has counted
	atGSOSize = 176 // how many bytes of the payload each segment gets; 0: the packet is a single segment
)

// byFrags stands in gso_size if the segments of a packet differ in length, as SCTP's do (GSO_BY_FRAGS,
// linux/skbuff.h). Only the kernel itself makes such packets, and it counts their segments.
const byFrags = 0xffff

// These are lengths of headers, in bytes (IEEE 802.3; RFC 8200, section 3; RFC 768; RFC 9260,
// section 3).
const (
	ethernet = 14
	ipv6     = 40
	udp      = 8
	sctp     = 12
)

// extensions is how many extension headers of IPv6 a program reads. A packet has at most 5 of the headers
// that extend knows: each once, and the destination options twice (RFC 8200, section 4.1).
const extensions = 8

// These are the registers of onWire that keep their values over a call, and value, which does not.
const (
	bytes, protocol, headers, skb = asm.R6, asm.R7, asm.R8, asm.R9
	value                         = asm.R2
	stack                         = -16 // where load puts what it reads
)

// load returns instructions that read `many` bytes of the frame into the stack, from the offset that is in
// R2. If the frame does not have so many, the program goes on at "frames".
func load(many int32) asm.Instructions {
	return asm.Instructions{
		asm.Mov.Reg(asm.R1, skb),
		asm.Mov.Reg(asm.R3, asm.RFP),
		asm.Add.Imm(asm.R3, stack),
		asm.Mov.Imm(asm.R4, many),
		asm.FnSkbLoadBytes.Call(),
		asm.JNE.Imm(asm.R0, 0, "frames"),
	}
}

// onWire returns instructions that leave in R6 how many bytes a packet has on the wire, and go on at
// "whole", or at "above" if the program has to drop the packet. A pod chooses how long its segments and their headers are. In C, with the frame's
// bytes from skb_load_bytes:
//
//	u64 bytes = skb->len, size = skb->gso_size, headers, frames;
//	if (!size || size >= bytes && size != GSO_BY_FRAGS)
//		goto whole;
//	if (ethertype == ETH_P_IP) {
//		headers = 14 + ihl * 4;
//		protocol = iphdr.protocol;
//	} else if (ethertype == ETH_P_IPV6) {
//		headers = 14 + 40;
//		protocol = ipv6hdr.nexthdr;
//		extend();                          // headers and protocol, or TC_ACT_SHOT
//	}
//	if (protocol == IPPROTO_TCP)
//		headers += doff * 4;
//	else if (protocol == IPPROTO_UDP)
//		headers += 8;
//	else if (protocol == IPPROTO_SCTP && size == GSO_BY_FRAGS) {
//		if (skb->gso_segs)
//			bytes += (skb->gso_segs - 1) * (headers + 12);
//		goto whole;
//	}
//	if (all of these are known) {
//		if (headers < bytes)
//			bytes += (bytes - headers - 1) / size * headers;
//		goto whole;
//	}
//	frames = size == GSO_BY_FRAGS ? skb->gso_segs : bytes / size + 1;
//	bytes = max(bytes, frames * longest);      // a link with the pod's MTU has no longer frames
//	whole:
func onWire(longest int) asm.Instructions {
	const (
		frames, size = asm.R3, asm.R4
		first, room  = 12, 12 // the first byte of the frame that the program reads: the EtherType
	)
	read := func(to asm.Register, at int16) asm.Instruction {
		return asm.LoadMem(to, asm.RFP, stack+at-first, asm.Byte)
	}
	return slices.Concat(
		asm.Instructions{
			asm.Mov.Reg(skb, asm.R1),
			asm.LoadMem(bytes, skb, atLen, asm.Word),
			asm.LoadMem(size, skb, atGSOSize, asm.Word),
			asm.JEq.Imm(size, 0, "whole"),
			asm.JEq.Imm(size, byFrags, "headers"),
			asm.JGE.Reg(size, bytes, "whole"),
			asm.Mov.Imm(value, first).WithSymbol("headers"),
		},
		load(room),
		asm.Instructions{
			asm.LoadMem(value, asm.RFP, stack, asm.Half),
			asm.HostTo(asm.BE, value, asm.Half),
			asm.JEq.Imm(value, unix.ETH_P_IPV6, "v6"),
			asm.JNE.Imm(value, unix.ETH_P_IP, "frames"),
			read(headers, 14),
			asm.And.Imm(headers, 0x0f),
			asm.LSh.Imm(headers, 2),
			asm.Add.Imm(headers, ethernet),
			read(protocol, 23),
			asm.Ja.Label("transport"),
			asm.Mov.Imm(headers, ethernet+ipv6).WithSymbol("v6"),
			read(protocol, 20),
		},
		extend(),
		asm.Instructions{
			asm.JEq.Imm(protocol, unix.IPPROTO_UDP, "udp").WithSymbol("transport"),
			asm.JEq.Imm(protocol, unix.IPPROTO_TCP, "tcp"),
			asm.JNE.Imm(protocol, unix.IPPROTO_SCTP, "frames"),
			asm.LoadMem(size, skb, atGSOSize, asm.Word),
			asm.JNE.Imm(size, byFrags, "frames"),
			asm.LoadMem(value, skb, atGSOSegs, asm.Word),
			asm.JEq.Imm(value, 0, "whole"),
			asm.Sub.Imm(value, 1),
			asm.Add.Imm(headers, sctp),
			asm.Mul.Reg(value, headers),
			asm.Add.Reg(bytes, value),
			asm.Ja.Label("whole"),
			asm.Mov.Reg(value, headers).WithSymbol("tcp"),
			asm.Add.Imm(value, 12),
		},
		load(1),
		asm.Instructions{
			asm.LoadMem(value, asm.RFP, stack, asm.Byte),
			asm.And.Imm(value, 0xf0),
			asm.RSh.Imm(value, 2),
			asm.Add.Reg(headers, value),
			asm.Ja.Label("known"),
			asm.Add.Imm(headers, udp).WithSymbol("udp"),
			asm.JGE.Reg(headers, bytes, "whole").WithSymbol("known"),
			asm.LoadMem(size, skb, atGSOSize, asm.Word),
			asm.Mov.Reg(value, bytes),
			asm.Sub.Reg(value, headers),
			asm.Sub.Imm(value, 1),
			asm.Div.Reg(value, size),
			asm.Mul.Reg(value, headers),
			asm.Add.Reg(bytes, value),
			asm.Ja.Label("whole"),
			asm.LoadMem(frames, skb, atGSOSegs, asm.Word).WithSymbol("frames"),
			asm.LoadMem(size, skb, atGSOSize, asm.Word),
			asm.JEq.Imm(size, byFrags, "full"),
			asm.Mov.Reg(frames, bytes),
			asm.Div.Reg(frames, size),
			asm.Add.Imm(frames, 1),
			asm.Mul.Imm(frames, int32(longest)).WithSymbol("full"),
			asm.JGE.Reg(bytes, frames, "whole"),
			asm.Mov.Reg(bytes, frames),
		})
}

// extend adds IPv6's extension headers to headers, which is where the first would begin, and leaves in
// protocol what follows them, at "transport". These are the headers that the kernel reads past when it cuts a
// packet into segments, and the fragment header. The program has no loop, which not every verifier can see the
// end of: each header has instructions of its own. In C:
//
//	for (i = 0; protocol is IPPROTO_HOPOPTS, _ROUTING, _FRAGMENT or _DSTOPTS; i++) {
//		if (i == 8)
//			return TC_ACT_SHOT;
//		headers += 8 + (protocol == IPPROTO_FRAGMENT ? 0 : ipv6_opt_hdr.hdrlen * 8);
//		protocol = ipv6_opt_hdr.nexthdr;
//	}
func extend() (all asm.Instructions) {
	// ends goes on at a label if an extension header follows, and otherwise at "transport".
	ends := func(extension string) {
		for _, p := range []int32{unix.IPPROTO_HOPOPTS, unix.IPPROTO_ROUTING, unix.IPPROTO_FRAGMENT, unix.IPPROTO_DSTOPTS} {
			all = append(all, asm.JEq.Imm(protocol, p, extension))
		}
		all = append(all, asm.Ja.Label("transport"))
	}
	for i := range extensions {
		extension, end := "extension"+strconv.Itoa(i), "end"+strconv.Itoa(i)
		ends(extension)
		all = append(all, asm.Mov.Reg(value, headers).WithSymbol(extension))
		all = append(all, load(2)...)
		all = append(all,
			asm.Add.Imm(headers, 8),
			asm.JEq.Imm(protocol, unix.IPPROTO_FRAGMENT, end),
			asm.LoadMem(value, asm.RFP, stack+1, asm.Byte),
			asm.LSh.Imm(value, 3),
			asm.Add.Reg(headers, value),
			asm.LoadMem(protocol, asm.RFP, stack, asm.Byte).WithSymbol(end))
	}
	ends("above")
	return all
}
