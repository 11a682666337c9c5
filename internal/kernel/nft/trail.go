package nft

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/nlsock"
)

// Constants of include/uapi/linux/netfilter that x/sys/unix lacks.
const (
	tableOwned = 2 // NFT_TABLE_F_OWNER: the table goes with the socket that made it (Linux 5.12)
	traceGroup = 9 // NFNLGRP_NFTRACE

	verdictDrop = 0 // NF_DROP
)

// Trail hears where a probe's packets pass the nftables of a network namespace, and what drops
// them there. It has a table of its own, with a chain at either end of each hook, whose rules match
// the probe's packets alone. The kernel removes the table when somebody closes the Trail, or when the
// Trail's process ends.
type Trail struct {
	name     string
	token    [8]byte
	segments []Segments
	owner    *netlink.Conn     // the socket that made the table
	ear      *netlink.Conn     // the socket that hears of packets
	known    map[uint32]origin // how the Trail first saw each packet, by the kernel's number for the packet
}

// origin is how a packet was first seen.
type origin struct {
	Packet
	in int
}

// Packet is what a packet's headers say. Anybody who knows the token, or guesses ports, can send a
// packet of a probe's ID.
type Packet struct {
	ID       uint32 // identifier and sequence number of an echo (echo.Request.ID), or Segments.ID
	Reply    bool
	From, To netip.Addr
}

// Sight is one thing that happened to a packet.
type Sight struct {
	Packet        // as the Trail first saw the packet, before any rule could change it
	In     int    // index of the link that the packet came in by; 0: the namespace sent the packet itself
	Hook   string // prerouting, input, forward, output or postrouting; "" with Drop
	Last   bool   // the packet has passed all chains of the hook; otherwise it comes to them
	Now    Packet // as the packet is there: masquerade changes addresses, and an echo's identifier; zero with Drop
	Drop   *Drop  // the packet was dropped
}

// Drop is the rule, or the chain's policy, that dropped a packet.
type Drop struct {
	Family, Table, Chain string // as nft(8) writes them
	Handle               uint64 // of the rule, as `nft -a` shows it; 0: by the chain's policy
}

// Say names the rule or policy that dropped the packet. If chains has the chain, Say adds its hook and
// policy.
func (d Drop) Say(chains []BaseChain) string {
	what := fmt.Sprintf("chain %s %s %s", d.Family, d.Table, d.Chain)
	for _, c := range chains {
		if c.Family == d.Family && c.Table == d.Table && c.Name == d.Chain {
			what = c.String()
		}
	}
	if d.Handle == 0 {
		return "the policy of " + what
	}
	return fmt.Sprintf("rule %d (nft -a list chain %s %s %s) of %s", d.Handle, d.Family, d.Table, d.Chain, what)
}

// Segments says by their ports which TCP segments to follow: the segments of one connection, also
// if masquerade has changed its ports.
type Segments struct{ From, To uint16 }

// ID is the ID of the segments' packets.
func (s Segments) ID() uint32 { return uint32(s.From)<<16 | uint32(s.To) }

// Follow begins to follow the ICMP echos whose data begin with a token, and some TCP segments.
func (t *Tables) Follow(token [8]byte, segments ...Segments) (*Trail, error) {
	failed := func(err error) (*Trail, error) {
		return nil, fmt.Errorf("following packets by nftables: %w", kernel.Classify(err))
	}
	ear, err := t.openReader()
	if err != nil {
		return failed(err)
	}
	_ = ear.SetReadBuffer(receiveBuffer) // with a smaller buffer Read may say that something is missing
	if err := ear.JoinGroup(traceGroup); err != nil {
		_ = ear.Close()
		return failed(err)
	}
	owner, err := t.openReader()
	if err != nil {
		_ = ear.Close()
		return failed(err)
	}
	f := &Trail{name: fmt.Sprintf("probe-%x", token), token: token, segments: segments, owner: owner, ear: ear, known: map[uint32]origin{}}
	var r request
	r.add(unix.NFT_MSG_NEWTABLE, netlink.Create|netlink.Excl, attr(unix.NFTA_TABLE_NAME, f.name), attr32(unix.NFTA_TABLE_FLAGS, tableOwned))
	rules := traced(token, segments)
	for h := hookPrerouting; h <= hookPostrouting; h++ {
		for _, end := range ends {
			c := chain{name: h.String() + end.suffix, typ: nftables.ChainTypeFilter, hook: h, priority: end.priority, rules: rules}
			r.addChain(f.name, c)
			r.addRules(f.name, c)
		}
	}
	if err := r.commit(owner); err != nil {
		f.Close()
		return failed(err)
	}
	return f, nil
}

// ends are the two ends of a hook. Behind the last chain comes only connection tracking, which confirms
// the packets that pass.
var ends = []struct {
	suffix   string
	priority priority
}{{"-first", -1 << 31}, {lastSuffix, 1<<31 - 2}}

const lastSuffix = "-last"

// traced returns the rules that have the kernel tell of the probe's packets.
//
//	meta l4proto icmp @th,64,64 TOKEN meta nftrace set 1
//	meta l4proto tcp @th,0,32 PORTS meta nftrace set 1
//	meta l4proto tcp ct original proto-src PORT ct original proto-dst PORT meta nftrace set 1
func traced(token [8]byte, segments []Segments) (rules []rule) {
	trace := []expr.Any{
		&expr.Immediate{Register: reg, Data: []byte{1}},
		&expr.Meta{Key: expr.MetaKeyNFTRACE, SourceRegister: true, Register: reg},
	}
	is := func(e expr.Any, data []byte) []expr.Any {
		return []expr.Any{e, &expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: data}}
	}
	add := func(protocol byte, matches ...expr.Any) {
		of := is(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg}, []byte{protocol})
		rules = append(rules, rule{exprs: slices.Concat(of, matches, trace)})
	}
	transport := func(offset, size uint32) expr.Any {
		return &expr.Payload{OperationType: expr.PayloadLoad, DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: size}
	}
	for _, protocol := range []byte{unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6} {
		add(protocol, is(transport(8, 8), token[:])...)
	}
	for _, s := range segments {
		from, to := binary.BigEndian.AppendUint16(nil, s.From), binary.BigEndian.AppendUint16(nil, s.To)
		add(unix.IPPROTO_TCP, is(transport(0, 4), slices.Concat(from, to))...)
		add(unix.IPPROTO_TCP, is(transport(0, 4), slices.Concat(to, from))...)
		add(unix.IPPROTO_TCP, slices.Concat(
			is(&expr.Ct{Key: expr.CtKeyPROTOSRC, Register: reg}, from),
			is(&expr.Ct{Key: expr.CtKeyPROTODST, Register: reg}, to))...)
	}
	return rules
}

// Read returns what the kernel has told since the last Read, in its order, and waits for nothing:
// the kernel tells while the packet is under way. whole is false if the kernel had more to tell than
// there was room for.
func (f *Trail) Read() (sights []Sight, whole bool, err error) {
	raw, err := f.ear.SyscallConn()
	if err != nil {
		return nil, false, fmt.Errorf("following packets by nftables: %w", err)
	}
	whole = true
	var failed error
	buf := make([]byte, nlsock.BufferSize)
	err = raw.Control(func(fd uintptr) {
		for {
			n, _, err := unix.Recvfrom(int(fd), buf, unix.MSG_DONTWAIT)
			switch err {
			case nil:
			case unix.EAGAIN:
				return
			case unix.EINTR:
				continue
			case unix.ENOBUFS:
				whole = false
				continue
			default:
				failed = os.NewSyscallError("recvfrom", err)
				return
			}
			messages, err := syscall.ParseNetlinkMessage(buf[:n])
			if err != nil {
				failed = err
				return
			}
			for _, m := range messages {
				if s, ok := f.sight(netlink.Message{Header: netlink.Header{Type: netlink.HeaderType(m.Header.Type)}, Data: m.Data}); ok {
					sights = append(sights, s)
				}
			}
		}
	})
	if err = errors.Join(err, failed); err != nil {
		return sights, false, fmt.Errorf("following packets by nftables: %w", kernel.Classify(err))
	}
	return sights, whole, nil
}

// sight reads a message about a traced packet. ok is false for packets that only others trace, and for
// what a Trail does not report.
func (f *Trail) sight(m netlink.Message) (s Sight, ok bool) {
	if m.Header.Type != messageType(unix.NFT_MSG_TRACE) {
		return s, false
	}
	attrs, err := attributes(m)
	if err != nil {
		return s, false
	}
	number32 := func(typ uint16) uint32 { return number(attrs[typ]) }
	packet := number32(unix.NFTA_TRACE_ID)
	table, chain := text(attrs[unix.NFTA_TRACE_TABLE]), text(attrs[unix.NFTA_TRACE_CHAIN])
	ours := table == f.name
	if ours {
		s.Hook, s.Last = strings.CutSuffix(chain, lastSuffix)
		s.Hook = strings.TrimSuffix(s.Hook, ends[0].suffix)
		if s.Now, ok = f.packetOf(attrs[unix.NFTA_TRACE_NETWORK_HEADER], attrs[unix.NFTA_TRACE_TRANSPORT_HEADER]); ok {
			// A known number of a packet that begins its way here is an earlier packet's: the kernel
			// gives numbers again.
			begins := !s.Last && (s.Hook == hookPrerouting.String() || s.Hook == hookOutput.String())
			if _, known := f.known[packet]; !known || begins {
				f.known[packet] = origin{s.Now, int(number32(unix.NFTA_TRACE_IIF))}
			}
		}
	}
	first, ok := f.known[packet]
	if !ok {
		return s, false
	}
	s.Packet, s.In = first.Packet, first.in
	if ours {
		return s, number32(unix.NFTA_TRACE_TYPE) == unix.NFT_TRACETYPE_RULE
	}
	if !drops(attrs) {
		return s, false
	}
	d := Drop{Family: familyWords[nftables.TableFamily(m.Data[0])], Table: table, Chain: chain}
	if raw := attrs[unix.NFTA_TRACE_RULE_HANDLE]; len(raw) == 8 && number32(unix.NFTA_TRACE_TYPE) == unix.NFT_TRACETYPE_RULE {
		d.Handle = binary.BigEndian.Uint64(raw)
	}
	s.Drop = &d
	return s, true
}

// packetOf tells which packet has this network header and this transport header.
func (f *Trail) packetOf(network, transport []byte) (p Packet, ok bool) {
	p.From, p.To = addressesOf(network)
	if h := transport; len(h) >= 16 && bytes.Equal(h[8:16], f.token[:]) {
		const reply4, reply6 = 0, 129 // ICMP types (RFC 792; RFC 4443)
		p.ID, p.Reply = binary.BigEndian.Uint32(h[4:]), h[0] == reply4 || h[0] == reply6
		return p, true
	}
	if len(transport) < 4 {
		return p, false
	}
	from, to := binary.BigEndian.Uint16(transport), binary.BigEndian.Uint16(transport[2:])
	for _, s := range f.segments { // masquerade may have changed the prober's port
		if p.ID = s.ID(); s.To == to || s.To == from {
			p.Reply = s.To != to
			return p, true
		}
	}
	return p, false
}

// addressesOf reads source and destination of an IP header. They are zero addresses if h is no IP
// header.
func addressesOf(h []byte) (from, to netip.Addr) {
	switch {
	case len(h) >= 20 && h[0]>>4 == 4:
		return netip.AddrFrom4([4]byte(h[12:])), netip.AddrFrom4([4]byte(h[16:]))
	case len(h) >= 40 && h[0]>>4 == 6:
		return netip.AddrFrom16([16]byte(h[8:])), netip.AddrFrom16([16]byte(h[24:]))
	}
	return from, to
}

// drops reports whether a trace says that a rule or a policy dropped the packet.
func drops(attrs map[uint16][]byte) bool {
	switch number(attrs[unix.NFTA_TRACE_TYPE]) {
	case unix.NFT_TRACETYPE_POLICY:
		return len(attrs[unix.NFTA_TRACE_POLICY]) == 4 && number(attrs[unix.NFTA_TRACE_POLICY]) == verdictDrop
	case unix.NFT_TRACETYPE_RULE:
		verdict, err := nested(attrs[unix.NFTA_TRACE_VERDICT])
		return err == nil && len(verdict[unix.NFTA_VERDICT_CODE]) == 4 && number(verdict[unix.NFTA_VERDICT_CODE])&0xff == verdictDrop
	}
	return false
}

// Close ends the following, and removes the table.
func (f *Trail) Close() {
	_ = f.ear.Close()
	_ = f.owner.Close()
}
