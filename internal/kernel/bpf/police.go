// Package bpf makes the eBPF programs that the kernel runs for Berth.
package bpf

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel"
)

// late is how much closer together packets may arrive than the limit of the pod's end has sent them:
// the kernel hands packets on in bursts when a processor is busy.
const late = 100 * time.Millisecond

// These are the verdicts of a program for tc about a packet (linux/pkt_cls.h).
const (
	next = -1 // TC_ACT_UNSPEC: let the next filter see the packet
	shot = 2  // TC_ACT_SHOT: drop it
)

// cmpXchg is the operation of an atomic instruction that compares R0 and exchanges
// (BPF_CMPXCHG, linux/bpf.h).
const cmpXchg = 0xf1

// These are the offsets of a packet's fields that a program reads (struct __sk_buff, linux/bpf.h),
// in bytes.
const (
	atLen     = 0
	atGSOSize = 176 // how many bytes of the payload each segment gets; 0: the packet is a single segment
)

// These are lengths of headers, in bytes (IEEE 802.3; RFC 8200, section 3; RFC 768).
const (
	ethernet = 14
	ipv6     = 40
	udp      = 8
)

// PolicerName is the name under which the kernel lists a policer's program and map.
const PolicerName = "berth_police"

// Policer is a program that drops packets above a rate. It delays nothing. After Close the program
// belongs to the link that it was attached to, and ends with that link.
type Policer struct{ program *ebpf.Program }

// NewPolicer loads a policer that passes rate bytes a second, and at most burst bytes at once. Beside
// the burst the policer leaves room for what the rate sends in 100 ms, so that a sender that keeps to
// the rate and the burst loses nothing. The policer counts packets as tc does, with their link-layer
// header. If segments travel as one packet (GSO), the policer counts each segment with the packet's
// headers, as tc does, if these are Ethernet, IP without extension headers, and TCP or UDP. The headers
// of other packets can be much longer, so the policer counts each of their segments as a frame of the
// link's MTU. If spent is true, the policer begins as if somebody had just sent the burst and the bytes
// of the room. A kernel before 5.12, which has no atomic compare and exchange, answers
// kernel.ErrUnsupported. The process needs CAP_NET_ADMIN, and CAP_BPF or CAP_SYS_ADMIN, in the first
// user namespace; otherwise the answer is kernel.ErrPermission.
func NewPolicer(rate, burst uint64, mtu int, spent bool) (*Policer, error) {
	if rate == 0 {
		return nil, errors.New("a policer needs a rate above 0")
	}
	p, err := newPolicer(rate, burst, mtu, spent)
	if err != nil {
		err = fmt.Errorf("loading a program that drops what is above %d bytes a second: %w", rate, err)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, ebpf.ErrNotSupported) { // nothing is wrong with the program, so the kernel lacks an instruction
			err = kernel.As(kernel.ErrUnsupported, err)
		}
		return nil, kernel.Classify(err)
	}
	return &Policer{p}, nil
}

func newPolicer(rate, burst uint64, mtu int, spent bool) (*ebpf.Program, error) {
	due, err := ebpf.NewMap(&ebpf.MapSpec{Name: PolicerName, Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		return nil, err
	}
	defer due.Close() // the program keeps the map
	if spent {
		if err := due.Put(uint32(0), uint64(allSpent)); err != nil {
			return nil, err
		}
	}
	return ebpf.NewProgramWithOptions(&ebpf.ProgramSpec{
		Name: PolicerName, Type: ebpf.SchedCLS, License: "Apache-2.0", Instructions: police(due.FD(), rate, depth(rate, burst), ethernet+mtu),
	}, ebpf.ProgramOptions{LogDisabled: true})
}

// FD returns the file descriptor of the program, for attaching it.
func (p *Policer) FD() int { return p.program.FD() }

// Close closes the file descriptor of the program. Links to which the program is attached keep the
// program.
func (p *Policer) Close() error { return p.program.Close() }

// depth returns how long, in nanoseconds, the rate takes for the burst and the room of NewPolicer; 2^62
// (146 years) if that time is longer.
func depth(rate, burst uint64) uint64 {
	const most = 1 << 62
	if burst/rate > most/uint64(time.Second)-2 {
		return most
	}
	whole, part := burst/rate, burst%rate
	return whole*uint64(time.Second) + uint64(float64(part)/float64(rate)*float64(time.Second)) + uint64(late)
}

// allSpent is in the map of a spent policer until the first packet comes. The program reads the
// clock itself, because a process in a time namespace has another clock.
const allSpent = math.MaxUint64

// police returns a token bucket in the form of GCRA (ITU-T I.371, annex A): the map has the time up to
// which the rate has paid for all packets that passed. A packet passes if that time, with what the
// packet costs, is at most depth after now. In C:
//
//	u64 now = bpf_ktime_get_ns(), bytes = onWire(skb), t = *due;
//	u64 cost = bytes * 1000000000 / rate, most = now + depth;
//	if (t == allSpent) {
//		cmpxchg(due, t, most);
//		t = most;
//	}
//	if (t < now) {                      // the bucket is full: the past pays for nothing
//		cmpxchg(due, t, now);       // unless another processor has just done so
//		t = now;
//	}
//	if (t + cost > most)
//		return TC_ACT_SHOT;
//	atomic_add(due, cost);
//	return TC_ACT_UNSPEC;
//
// If several processors look at packets in the same instant, all these packets may pass by one token.
// The program adds the cost of all of them afterwards.
func police(due int, rate, depth uint64, longest int) asm.Instructions {
	const (
		result        = asm.R0
		cost, now, at = asm.R6, asm.R7, asm.R8
		t, most       = asm.R2, asm.R3
	)
	set := func(to asm.Register) asm.Instruction {
		i := asm.CmpXchg.Mem(at, to, asm.DWord, 0)
		i.Constant = cmpXchg // cilium/ebpf 0.22 writes the operation only from here, and so would add
		return i
	}
	return append(onWire(longest), asm.Instructions{
		asm.FnKtimeGetNs.Call().WithSymbol("whole"),
		asm.Mov.Reg(now, result),
		asm.Mul.Imm(cost, int32(time.Second)),
		asm.LoadImm(most, int64(rate), asm.DWord),
		asm.Div.Reg(cost, most),
		asm.LoadMapValue(at, due, 0),
		asm.LoadMem(t, at, 0, asm.DWord),
		asm.LoadImm(most, int64(depth), asm.DWord),
		asm.Add.Reg(most, now),
		asm.JNE.Imm(t, -1, "begun"), // allSpent
		asm.Mov.Reg(result, t),
		set(most),
		asm.Mov.Reg(t, most),
		asm.JGE.Reg(t, now, "owing").WithSymbol("begun"),
		asm.Mov.Reg(result, t),
		set(now),
		asm.Mov.Reg(t, now),
		asm.Add.Reg(t, cost).WithSymbol("owing"),
		asm.JGT.Reg(t, most, "above"),
		asm.AddAtomic.Mem(at, cost, asm.DWord, 0),
		asm.Mov.Imm(result, next),
		asm.Return(),
		asm.Mov.Imm(result, shot).WithSymbol("above"),
		asm.Return(),
	}...)
}

// onWire returns instructions that leave in R6 how many bytes a packet has on the wire, and go on at
// "whole". A pod chooses how long its segments and their headers are, but no frame has more bytes than
// longest. In C, with the frame's bytes from skb_load_bytes:
//
//	u64 bytes = skb->len, size = skb->gso_size, headers, frames;
//	if (!size || size >= bytes)
//		goto whole;
//	if (ethertype == ETH_P_IP)
//		headers = 14 + ihl * 4;
//	else if (ethertype == ETH_P_IPV6)
//		headers = 14 + 40;
//	if (protocol == IPPROTO_TCP)
//		headers += doff * 4;
//	else if (protocol == IPPROTO_UDP)
//		headers += 8;
//	if (all of these are known) {
//		if (headers < bytes)
//			bytes += (bytes - headers - 1) / size * headers;
//	} else {
//		frames = (bytes / size + 1) * longest;
//		bytes = max(bytes, frames);
//	}
//	whole:
func onWire(longest int) asm.Instructions {
	const (
		bytes, size, headers, skb = asm.R6, asm.R7, asm.R8, asm.R9
		value, frames             = asm.R2, asm.R3
		first                     = 12 // the first byte of the frame that the program reads: the EtherType
		stack, room               = -16, 12
	)
	load := func(room int32) asm.Instructions { // into the stack, from the offset that is in R2
		return asm.Instructions{
			asm.Mov.Reg(asm.R1, skb),
			asm.Mov.Reg(asm.R3, asm.RFP),
			asm.Add.Imm(asm.R3, stack),
			asm.Mov.Imm(asm.R4, room),
			asm.FnSkbLoadBytes.Call(),
			asm.JNE.Imm(asm.R0, 0, "frames"),
		}
	}
	read := func(to asm.Register, at int16) asm.Instruction {
		return asm.LoadMem(to, asm.RFP, stack+at-first, asm.Byte)
	}
	return slices.Concat(
		asm.Instructions{
			asm.Mov.Reg(skb, asm.R1),
			asm.LoadMem(bytes, skb, atLen, asm.Word),
			asm.LoadMem(size, skb, atGSOSize, asm.Word),
			asm.JEq.Imm(size, 0, "whole"),
			asm.JGE.Reg(size, bytes, "whole"),
			asm.Mov.Imm(value, first),
		},
		load(room),
		asm.Instructions{
			asm.LoadMem(value, asm.RFP, stack, asm.Half),
			asm.HostTo(asm.BE, value, asm.Half),
			asm.JEq.Imm(value, unix.ETH_P_IP, "v4"),
			asm.JNE.Imm(value, unix.ETH_P_IPV6, "frames"),
			asm.Mov.Imm(headers, ethernet+ipv6),
			read(value, 20),
			asm.Ja.Label("transport"),
			read(headers, 14).WithSymbol("v4"),
			asm.And.Imm(headers, 0x0f),
			asm.LSh.Imm(headers, 2),
			asm.Add.Imm(headers, ethernet),
			read(value, 23),
			asm.JEq.Imm(value, unix.IPPROTO_UDP, "udp").WithSymbol("transport"),
			asm.JNE.Imm(value, unix.IPPROTO_TCP, "frames"),
			asm.Mov.Reg(value, headers),
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
			asm.Mov.Reg(value, bytes),
			asm.Sub.Reg(value, headers),
			asm.Sub.Imm(value, 1),
			asm.Div.Reg(value, size),
			asm.Mul.Reg(value, headers),
			asm.Add.Reg(bytes, value),
			asm.Ja.Label("whole"),
			asm.Mov.Reg(frames, bytes).WithSymbol("frames"),
			asm.Div.Reg(frames, size),
			asm.Add.Imm(frames, 1),
			asm.Mul.Imm(frames, int32(longest)),
			asm.JGE.Reg(bytes, frames, "whole"),
			asm.Mov.Reg(bytes, frames),
		})
}
