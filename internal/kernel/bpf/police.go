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

// PolicerName is the name under which the kernel lists a policer's program and map.
const PolicerName = "berth_police"

// Policer is a program that drops packets above a rate. It delays nothing. After Close the program
// belongs to the link that it was attached to, and ends with that link.
type Policer struct{ program *ebpf.Program }

// NewPolicer loads a policer that passes rate bytes a second, and at most burst bytes at once. Beside
// the burst the policer leaves room for what the rate sends in 100 ms, so that a sender that keeps to
// the rate and the burst loses nothing. The policer counts packets as tc does, with their link-layer
// header. If segments travel as one packet (GSO), the policer counts each segment with the packet's
// headers, as tc does, if these are Ethernet, IP, at most 8 extension headers of IPv6, and TCP, UDP or SCTP.
// The policer drops segments with more extension headers, which nobody needs. The headers of other
// packets can be longer, so the policer counts each of their segments as a frame of the link's MTU. If
// spent is true, the policer begins as if somebody had just sent the burst and the bytes of the room. A
// kernel before 5.12, which has no atomic compare and exchange, answers kernel.ErrUnsupported. The
// process needs CAP_NET_ADMIN, and CAP_BPF or CAP_SYS_ADMIN, in the first user namespace; otherwise the
// answer is kernel.ErrPermission.
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

// mostBytes is the most bytes that a packet counts as: 8 GiB, twice the longest burst. At a byte a second that
// costs less than 2^63 ns, so that neither the cost nor the time that is paid for can overflow.
const mostBytes = 1 << 33

// police returns a token bucket in the form of GCRA (ITU-T I.371, annex A): the map has the time up to
// which the rate has paid for all packets that passed. A packet passes if that time, with what the
// packet costs, is at most depth after now. In C:
//
//	u64 now = bpf_ktime_get_ns(), bytes = min(onWire(skb), mostBytes), t = *due;
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
		asm.LoadImm(most, mostBytes, asm.DWord).WithSymbol("whole"),
		asm.JLE.Reg(cost, most, "counted"),
		asm.Mov.Reg(cost, most),
		asm.FnKtimeGetNs.Call().WithSymbol("counted"),
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
