// Package bpf makes the eBPF programs that the kernel runs for Berth.
package bpf

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel"
)

// late is by how much packets may come closer together than their pacer has sent them:
// the kernel hands them on in bursts when a processor is busy.
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
	atGSOSize = 176 // how many bytes of the payload each segment gets; 0: the packet is one
)

// leastHeaders are the headers of a segment, of Ethernet, IPv4 and UDP: none has less.
const leastHeaders = 14 + 20 + 8

// PolicerName is what the kernel lists a policer as: its programs and maps.
const PolicerName = "berth_police"

// Policer is a program that drops what is above a rate. It delays nothing. Once Close was called,
// it belongs to the link that it was attached to, and ends with that link.
type Policer struct{ program *ebpf.Program }

// NewPolicer loads a policer that passes so many bytes a second, and at most so many bytes at
// once. Beside the burst it leaves room for what the rate sends in 100 ms, so that a sender that
// keeps to the rate and the burst loses nothing. It counts packets as tc does, with their
// link-layer header. If segments travel as one packet (GSO), each segment but the first counts with
// headers of 42 bytes; the queue that paced them counts 42 or more. If spent is true, the policer
// begins as if the burst and the room had just been sent. A kernel
// before 5.12, which has no atomic compare and exchange, answers kernel.ErrUnsupported. The process needs
// CAP_NET_ADMIN, and CAP_BPF or CAP_SYS_ADMIN, in the first user namespace; otherwise the answer is
// kernel.ErrPermission.
func NewPolicer(rate, burst uint64, spent bool) (*Policer, error) {
	if rate == 0 {
		return nil, errors.New("a policer needs a rate above 0")
	}
	p, err := newPolicer(rate, burst, spent)
	if err != nil {
		err = fmt.Errorf("loading a program that drops what is above %d bytes a second: %w", rate, err)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, ebpf.ErrNotSupported) { // there is nothing else wrong with it
			err = kernel.As(kernel.ErrUnsupported, err)
		}
		return nil, kernel.Classify(err)
	}
	return &Policer{p}, nil
}

func newPolicer(rate, burst uint64, spent bool) (*ebpf.Program, error) {
	due, err := ebpf.NewMap(&ebpf.MapSpec{Name: PolicerName, Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		return nil, err
	}
	defer due.Close() // the program keeps it
	if spent {
		if err := due.Put(uint32(0), uint64(allSpent)); err != nil {
			return nil, err
		}
	}
	return ebpf.NewProgramWithOptions(&ebpf.ProgramSpec{
		Name: PolicerName, Type: ebpf.SchedCLS, License: "Apache-2.0", Instructions: police(due.FD(), rate, depth(rate, burst)),
	}, ebpf.ProgramOptions{LogDisabled: true})
}

// FD returns the file descriptor of the program, for attaching it.
func (p *Policer) FD() int { return p.program.FD() }

// Close gives the program up. Links to which the program is attached keep it.
func (p *Policer) Close() error { return p.program.Close() }

// depth returns how long, in nanoseconds, the rate takes for the burst and its room, or 2^62 (146
// years), if that is longer.
func depth(rate, burst uint64) uint64 {
	const most = 1 << 62
	if burst/rate > most/uint64(time.Second)-2 {
		return most
	}
	whole, part := burst/rate, burst%rate
	return whole*uint64(time.Second) + uint64(float64(part)/float64(rate)*float64(time.Second)) + uint64(late)
}

// allSpent is in the map of a spent policer until the first packet comes. The program reads its
// clock itself, because that of a process in a time namespace is another one.
const allSpent = math.MaxUint64

// police is a token bucket in the form of GCRA (ITU-T I.371, annex A): the map has the time up to
// which the rate has paid for all packets that passed. A packet passes if that time, with what
// the packet costs, is at most depth after now. In C:
//
//	u64 now = bpf_ktime_get_ns(), bytes = skb->len, t = *due;
//	if (skb->gso_size && skb->gso_size < bytes)
//		bytes += (bytes / skb->gso_size - 1) * 42;
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
// Packets that several processors look at in the same instant may all pass by one token, and are
// all paid for afterwards.
func police(due int, rate, depth uint64) asm.Instructions {
	const (
		result, skb   = asm.R0, asm.R1
		cost, now, at = asm.R6, asm.R7, asm.R8
		t, most       = asm.R2, asm.R3
	)
	set := func(to asm.Register) asm.Instruction {
		i := asm.CmpXchg.Mem(at, to, asm.DWord, 0)
		i.Constant = cmpXchg // cilium/ebpf 0.22 writes the operation only from here, and so would add
		return i
	}
	return asm.Instructions{
		asm.LoadMem(cost, skb, atLen, asm.Word),
		asm.LoadMem(most, skb, atGSOSize, asm.Word),
		asm.JEq.Imm(most, 0, "whole"),
		asm.JGE.Reg(most, cost, "whole"),
		asm.Mov.Reg(t, cost),
		asm.Div.Reg(t, most),
		asm.Sub.Imm(t, 1),
		asm.Mul.Imm(t, leastHeaders),
		asm.Add.Reg(cost, t),
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
	}
}
