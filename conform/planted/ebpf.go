package main

import (
	"strconv"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// programs are faults that leave an eBPF program for each pod, on a link or pinned. A user namespace has no eBPF.
var programs = map[string]func(link netlink.Link, pod int) error{
	"tcx-left": func(l netlink.Link, _ int) error {
		return withProgram(ebpf.SchedCLS, func(p *ebpf.Program) error {
			return link.RawAttachProgram(link.RawAttachProgramOptions{Target: l.Attrs().Index, Program: p, Attach: ebpf.AttachTCXIngress})
		})
	},
	"pin-left": func(_ netlink.Link, pod int) error {
		return withProgram(ebpf.SchedCLS, func(p *ebpf.Program) error { return p.Pin("/sys/fs/bpf/planted-" + strconv.Itoa(pod)) })
	},
	"xdp-changed": func(l netlink.Link, _ int) error {
		if x := l.Attrs().Xdp; x != nil && x.Attached {
			return netlink.LinkSetXdpFdWithFlags(l, -1, unix.XDP_FLAGS_SKB_MODE)
		}
		return withProgram(ebpf.XDP, func(p *ebpf.Program) error {
			return netlink.LinkSetXdpFdWithFlags(l, p.FD(), unix.XDP_FLAGS_SKB_MODE)
		})
	},
}

// withProgram loads a program that lets everything pass: 2 is XDP_PASS, and for tcx a packet's way to go on is -1.
func withProgram(kind ebpf.ProgramType, do func(*ebpf.Program) error) error {
	verdict := int32(-1)
	if kind == ebpf.XDP {
		verdict = 2
	}
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: kind, License: "Apache-2.0", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, verdict), asm.Return()}})
	if err != nil {
		return err
	}
	defer p.Close()
	return do(p)
}
