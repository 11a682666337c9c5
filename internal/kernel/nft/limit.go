package nft

import (
	"fmt"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// A pod's connections are limited by a sample of them. The kernel counts by
// walking the list of what it counts (nf_conncount), once a tick: to count all
// of a pod's 10,000 makes opening one 30 times as dear, to count one in 64 takes
// a quarter of a microsecond. Chance says which are counted, so that nobody can
// open those that are not.
//
// A link's index is the key: whatever addresses a pod has or pretends to have, it
// has one limit, and another pod's link never has the same. What is counted of a
// pod that is gone is in nobody's way; the kernel forgets it by and by.

const (
	// leastCounted is the limit of the sample, if the limit of all is no less.
	// The real number is within a tenth of the limit, nine times of ten.
	leastCounted = 256
	// mostSampled is the greatest number of connections that one stands for.
	mostSampled = 64
	// rest is how long a link opens no connections after one too many.
	rest = 5 * time.Second
	// remembered is for how long a link that had one too many has to show that it has
	// room again before it opens one (see dropStrict). Without that it would open some
	// mostSampled that are not counted between any two rests. As it is, it does so when
	// it has not tried for so long.
	remembered = time.Hour

	// A bucket has as many tokens as a link may have connections, and is full again
	// after half a minute. So of one pod there are, within two minutes, at most six
	// times as many entries as it may have connections: a sixth of them open since long,
	// a sixth opened at once and closed, the others closed within that time; and an eighth
	// as many by their middle (resumedPart). A closed one goes after two minutes, unless the pod renews it by a packet, or makes it an open
	// one that is not counted: after a RST by a SYN, its answer and an ACK. No rule keeps
	// a pod from that. When the table fills up, the agent deletes what is too much of a
	// pod's (internal/agent/trim.go).
	refillsPerMinute = 2
	// resumedPart is what part of its share a link may have, beside it, of TCP connections
	// that the kernel knows by their middle: those that others have opened, and ended for
	// the node alone, or left by their deletion, are among them.
	resumedPart = 8
	// idle is when a bucket that nobody takes from is forgotten: it has been full.
	idle = time.Minute
)

// confirmed is IPS_CONFIRMED (linux/netfilter/nf_conntrack_common.h).
const confirmed = 1 << 3

// deleteFrom is NFT_DYNSET_OP_DELETE (linux/netfilter/nf_tables.h).
const deleteFrom = 2

// counted has what each link has open, crowded the links with too much, strict those
// which had too much when it was last looked, and hasty each link's bucket.
var (
	counted = set{name: "counted", of: nftables.TypeIFIndex, dynamic: true}
	crowded = set{name: "crowded", of: nftables.TypeIFIndex, dynamic: true, timeout: rest}
	strict  = set{name: "strict", of: nftables.TypeIFIndex, dynamic: true, timeout: remembered}
	hasty   = set{name: "hasty", of: nftables.TypeIFIndex, dynamic: true, timeout: idle}
	resumed = set{name: "resumed", of: nftables.TypeIFIndex, dynamic: true}
	tired   = set{name: "tired", of: nftables.TypeIFIndex, dynamic: true, timeout: idle}
)

// sampled says that one in so many connections is counted, up to a number.
func sampled(connections uint32) (oneIn, upTo uint32) {
	oneIn = min(max(connections/leastCounted, 1), mostSampled)
	return oneIn, max(connections/oneIn, 1)
}

// limit is what holds each live link to so many connections. Where all of them are
// counted, no link needs to be strict.
func limit(group, connections uint32) (sets []set, rules []rule) {
	sets, rules = append(sets, resumed, tired), append(rules, acceptConfirmed())
	rules = append(rules, limitResumed(group, max(connections/resumedPart, 1))...)
	sets, rules = append(sets, counted, crowded), append(rules, dropCrowded(group))
	if oneIn, _ := sampled(connections); oneIn > 1 {
		sets, rules = append(sets, strict), append(rules, dropStrict(group, connections), relent(group))
	}
	return append(sets, hasty), append(rules, dropHasty(group, connections), countNew(group, connections))
}

// acceptConfirmed spares all but the first packets of connections the other rules.
//
//	ct status & confirmed != 0 accept
func acceptConfirmed() rule {
	return rule{
		text: "ct status & confirmed != 0 accept",
		exprs: []expr.Any{
			&expr.Ct{Key: expr.CtKeySTATUS, Register: reg},
			mask(confirmed),
			&expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: make([]byte, 4)},
			&expr.Verdict{Kind: expr.VerdictAccept},
		},
	}
}

// isNew goes on if a packet came in by a link of a group and is the first of a
// connection: later ones are of one that is confirmed, if nobody answers too.
func isNew(group uint32) []expr.Any {
	return append(enters(group),
		&expr.Ct{Key: expr.CtKeySTATUS, Register: reg},
		mask(confirmed),
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: make([]byte, 4)})
}

// limitResumed holds a link to so many connections that the kernel knows by their middle,
// and spares them the other rules. A server's news for clients that have gone, or that
// have ended its connections for the node alone, begin such connections, and would use its
// own share up. They are few, and all of them are counted.
//
//	iifgroup 1073741824 ct status ! confirmed tcp flags ! syn
//		update @tired { iif limit rate over 8192/minute burst 4096 packets } drop
//	iifgroup 1073741824 ct status ! confirmed tcp flags ! syn add @resumed { iif ct count over 4096 } drop
//	iifgroup 1073741824 ct status ! confirmed tcp flags ! syn accept
func limitResumed(group, most uint32) []rule {
	begins := fmt.Sprintf("iifgroup %d ct status & confirmed == 0 tcp flags ! syn", group)
	isResumed := func(then ...expr.Any) []expr.Any {
		return slices.Concat(isNew(group), []expr.Any{
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg},
			&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{unix.IPPROTO_TCP}},
			&expr.Payload{
				OperationType: expr.PayloadLoad, DestRegister: reg,
				Base: expr.PayloadBaseTransportHeader, Offset: 13, Len: 1,
			},
			&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 1, Mask: []byte{2}, Xor: []byte{0}},
			&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{0}},
		}, then)
	}
	return []rule{
		{
			text: begins + " " + takeToken(tired, most) + " drop",
			exprs: isResumed(
				&expr.Meta{Key: expr.MetaKeyIIF, Register: reg}, tokenOf(tired, most),
				&expr.Verdict{Kind: expr.VerdictDrop}),
		},
		{
			text: fmt.Sprintf("%s add @%s { iif ct count over %d } drop", begins, resumed.name, most),
			exprs: isResumed(
				&expr.Meta{Key: expr.MetaKeyIIF, Register: reg},
				&expr.Dynset{
					SrcRegKey: reg, SetName: resumed.name, Operation: unix.NFT_DYNSET_OP_ADD,
					Exprs: []expr.Any{&expr.Connlimit{Count: most, Flags: expr.NFT_CONNLIMIT_F_INV}},
				},
				&expr.Verdict{Kind: expr.VerdictDrop}),
		},
		{
			text:  begins + " accept",
			exprs: isResumed(&expr.Verdict{Kind: expr.VerdictAccept}),
		},
	}
}

// dropCrowded lets a crowded link open no more connections.
//
//	iifgroup 1073741824 ct status ! confirmed iif @crowded drop
func dropCrowded(group uint32) rule {
	return rule{
		text: fmt.Sprintf("iifgroup %d ct status & confirmed == 0 iif @%s drop", group, crowded.name),
		exprs: append(isNew(group),
			&expr.Meta{Key: expr.MetaKeyIIF, Register: reg},
			&expr.Lookup{SourceRegister: reg, SetName: crowded.name},
			&expr.Verdict{Kind: expr.VerdictDrop}),
	}
}

// isStrict goes on if a packet begins a connection of a strict link.
func isStrict(group uint32) []expr.Any {
	return append(isNew(group),
		&expr.Meta{Key: expr.MetaKeyIIF, Register: reg},
		&expr.Lookup{SourceRegister: reg, SetName: strict.name})
}

// dropStrict counts what a strict link opens first after a rest, whatever chance says
// of it. If it is one too many, the link has to rest again.
//
//	iifgroup 1073741824 ct status ! confirmed iif @strict
//		add @counted { iif ct count over 512 } add @crowded { iif } update @strict { iif } drop
func dropStrict(group, connections uint32) rule {
	words, exprs := callCrowded(connections)
	return rule{
		text:  fmt.Sprintf("iifgroup %d ct status & confirmed == 0 iif @%s %s drop", group, strict.name, words),
		exprs: append(append(isStrict(group), exprs...), &expr.Verdict{Kind: expr.VerdictDrop}),
	}
}

// relent makes a strict link an ordinary one, if there was room for what it opened
// first. That is dropped all the same, so that the kernel forgets that it counted it,
// and who has sent it asks again: if the pod knew one that is counted, it could close
// it, and open mostSampled in its place that are not.
//
//	iifgroup 1073741824 ct status ! confirmed iif @strict delete @strict { iif } drop
func relent(group uint32) rule {
	return rule{
		text: fmt.Sprintf("iifgroup %[1]d ct status & confirmed == 0 iif @%[2]s delete @%[2]s { iif } drop", group, strict.name),
		exprs: append(isStrict(group),
			&expr.Meta{Key: expr.MetaKeyIIF, Register: reg},
			&expr.Dynset{SrcRegKey: reg, SetName: strict.name, Operation: deleteFrom},
			&expr.Verdict{Kind: expr.VerdictDrop}),
	}
}

// dropHasty drops a link's new TCP connections of which its bucket has no token.
//
//	iifgroup 1073741824 ct status ! confirmed meta l4proto tcp
//		update @hasty { iif limit rate over 65536/minute burst 32768 packets } drop
func dropHasty(group, connections uint32) rule {
	return rule{
		text: fmt.Sprintf("iifgroup %d ct status & confirmed == 0 meta l4proto tcp %s drop", group, takeToken(hasty, connections)),
		exprs: append(isNew(group),
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg},
			&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{unix.IPPROTO_TCP}},
			&expr.Meta{Key: expr.MetaKeyIIF, Register: reg},
			tokenOf(hasty, connections),
			&expr.Verdict{Kind: expr.VerdictDrop}),
	}
}

// tokenOf goes on if a link's bucket of so many tokens has none; takeToken is its text.
func tokenOf(buckets set, tokens uint32) expr.Any {
	return &expr.Dynset{
		SrcRegKey: reg, SetName: buckets.name, Operation: unix.NFT_DYNSET_OP_UPDATE,
		Exprs: []expr.Any{&expr.Limit{
			Type: expr.LimitTypePkts, Over: true,
			Rate: refillsPerMinute * uint64(tokens), Unit: expr.LimitTimeMinute, Burst: tokens,
		}},
	}
}

func takeToken(buckets set, tokens uint32) string {
	return fmt.Sprintf("update @%s { iif limit rate over %d/minute burst %d packets }",
		buckets.name, refillsPerMinute*uint64(tokens), tokens)
}

// countNew counts a sample of a link's new connections, and calls the link crowded if
// they are more than so many.
//
//	iifgroup 1073741824 ct status ! confirmed numgen random mod 64 0
//		add @counted { iif ct count over 512 } add @crowded { iif } update @strict { iif } drop
func countNew(group, connections uint32) rule {
	oneIn, _ := sampled(connections)
	chance, exprs := "", isNew(group)
	if oneIn > 1 {
		chance = fmt.Sprintf("numgen random mod %d 0 ", oneIn)
		exprs = append(exprs,
			&expr.Numgen{Register: reg, Modulus: oneIn, Type: unix.NFT_NG_RANDOM},
			&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: make([]byte, 4)})
	}
	words, count := callCrowded(connections)
	return rule{
		text:  fmt.Sprintf("iifgroup %d ct status & confirmed == 0 %s%s drop", group, chance, words),
		exprs: append(append(exprs, count...), &expr.Verdict{Kind: expr.VerdictDrop}),
	}
}

// callCrowded counts a connection, and calls its link crowded, and strict, if there are
// too many. The element of @counted is of whichever rule puts it there first, so that
// all of them have to say the same.
func callCrowded(connections uint32) (words string, exprs []expr.Any) {
	oneIn, upTo := sampled(connections)
	words = fmt.Sprintf("add @%s { iif ct count over %d } add @%s { iif }", counted.name, upTo, crowded.name)
	exprs = []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIF, Register: reg},
		&expr.Dynset{
			SrcRegKey: reg, SetName: counted.name, Operation: unix.NFT_DYNSET_OP_ADD,
			Exprs: []expr.Any{&expr.Connlimit{Count: upTo, Flags: expr.NFT_CONNLIMIT_F_INV}},
		},
		&expr.Meta{Key: expr.MetaKeyIIF, Register: reg},
		&expr.Dynset{SrcRegKey: reg, SetName: crowded.name, Operation: unix.NFT_DYNSET_OP_ADD},
	}
	if oneIn > 1 {
		words += fmt.Sprintf(" update @%s { iif }", strict.name)
		exprs = append(exprs,
			&expr.Meta{Key: expr.MetaKeyIIF, Register: reg},
			&expr.Dynset{SrcRegKey: reg, SetName: strict.name, Operation: unix.NFT_DYNSET_OP_UPDATE})
	}
	return words, exprs
}
