package nft

import (
	"fmt"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// The rules here limit how many connections a pod has, by counting a sample of them. The
// kernel counts by walking the list of the connections that it counts (nf_conncount),
// once a tick. If the rules counted all 10,000 connections of a pod, opening a connection would cost 30
// times as much. Counting one connection in 64 costs a quarter of a microsecond. The rules choose the
// counted connections at random, so that no pod can choose to open uncounted ones.
//
// The kernel keeps the counts by link index: a pod has one limit, no matter which addresses it has or
// pretends to have, and no other pod's link has the same index. The counts of a pod that is gone harm
// nobody; the kernel forgets them by and by.

const (
	// leastCounted is how many connections the sample holds at least when a link is at
	// its limit, unless the limit itself is less. With that many, the real number of
	// connections is within a tenth of the limit nine times out of ten.
	leastCounted = 256
	// mostSampled is how many connections one counted connection stands for, at most.
	mostSampled = 64
	// rest is how long a link can open no connections after it had one connection too many.
	rest = 5 * time.Second
	// remembered is how long a link stays strict after it had one connection too many. A
	// strict link has to show that it has room again before it opens a connection (see
	// dropStrict). Without that, a pod could open about mostSampled uncounted
	// connections between any two rests. As it is, a pod can do so only after it has not
	// tried for this long.
	remembered = time.Hour

	// refillsPerMinute says how fast a bucket fills. A link's bucket has as many tokens as
	// the link may have connections (its share), and an empty bucket is full again after half a minute.
	// So within two minutes a pod can fill at most six times its share of entries: one share of
	// connections that have long been open, one share that it opened at once and closed, and four
	// shares that it opened and closed as the bucket filled. Beside these, a pod can fill an eighth of
	// its share of entries by connections that the kernel first sees in their middle (resumedPart).
	//
	// The entry of a closed connection goes after two minutes, unless the pod renews the entry by a
	// packet, or turns the entry into an open connection that no rule counts: by a SYN after a RST, the
	// answer to the SYN, and an ACK. No rule keeps a pod from doing so. When the kernel's table of
	// connections fills up, the agent deletes the entries of which a pod has too many
	// (internal/traffic/trim.go).
	refillsPerMinute = 2
	// resumedPart divides a link's share: beside its share a link may have share/resumedPart
	// resumed connections of TCP and SCTP. The kernel first sees resumed connections in their middle. Among them
	// are connections that other pods have opened. The other pods have ended these connections only for
	// the node, or have left them behind when the pods were deleted.
	resumedPart = 8
	// idle is how long the kernel keeps a bucket that nobody takes a token from. By then the bucket has
	// long been full.
	idle = time.Minute
)

// confirmed is IPS_CONFIRMED (linux/netfilter/nf_conntrack_common.h).
const confirmed = 1 << 3

// deleteFrom is NFT_DYNSET_OP_DELETE (linux/netfilter/nf_tables.h).
const deleteFrom = 2

// The sets that packets fill, by link:
//   - counted counts the sampled connections that a link has;
//   - crowded has the links that had one connection too many, for as long as they rest;
//   - strict has the links that had too many when they were last checked (see dropStrict);
//   - hasty has each link's bucket for new TCP connections;
//   - resumed counts a link's resumed connections, and tired has the bucket for these.
var (
	counted = set{name: "counted", of: nftables.TypeIFIndex, dynamic: true}
	crowded = set{name: "crowded", of: nftables.TypeIFIndex, dynamic: true, timeout: rest}
	strict  = set{name: "strict", of: nftables.TypeIFIndex, dynamic: true, timeout: remembered}
	hasty   = set{name: "hasty", of: nftables.TypeIFIndex, dynamic: true, timeout: idle}
	resumed = set{name: "resumed", of: nftables.TypeIFIndex, dynamic: true}
	tired   = set{name: "tired", of: nftables.TypeIFIndex, dynamic: true, timeout: idle}
)

// sampled returns how the rules hold a link to a limit of connections: they count one connection in
// oneIn, and allow at most upTo counted connections.
func sampled(connections uint32) (oneIn, upTo uint32) {
	oneIn = min(max(connections/leastCounted, 1), mostSampled)
	return oneIn, max(connections/oneIn, 1)
}

// limit returns the sets and rules that hold each link of the group to about this many connections. The
// rules come behind acceptConfirmed. If the rules count all connections, no link needs to be strict.
func limit(group, connections uint32) (sets []set, rules []rule) {
	sets, rules = append(sets, resumed, tired), append(rules, limitResumed(group, max(connections/resumedPart, 1))...)
	sets, rules = append(sets, counted, crowded), append(rules, dropCrowded(group))
	if oneIn, _ := sampled(connections); oneIn > 1 {
		sets, rules = append(sets, strict), append(rules, dropStrict(group, connections), relent(group))
	}
	return append(sets, hasty), append(rules, dropHasty(group, connections), countNew(group, connections))
}

// acceptConfirmed lets all packets of connections skip the other rules, except the first packets. The
// first rule lets most packets pass by itself; the second lets packets of unanswered connections pass.
// Errors about a connection do not skip the rules: nothing has checked their source.
//
//	ct state established accept
//	ct state new ct status & confirmed != 0 accept
func acceptConfirmed() []rule {
	return []rule{acceptKnown(), {
		text: "ct state new ct status & confirmed != 0 accept",
		exprs: []expr.Any{
			&expr.Ct{Key: expr.CtKeySTATE, Register: reg},
			mask(expr.CtStateBitNEW),
			&expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: make([]byte, 4)},
			&expr.Ct{Key: expr.CtKeySTATUS, Register: reg},
			mask(confirmed),
			&expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: make([]byte, 4)},
			&expr.Verdict{Kind: expr.VerdictAccept},
		},
	}}
}

// isNew lets a rule go on if a packet came in by a link of a group and is the first of
// its connection. Later packets belong to a confirmed connection, even if nobody answers.
func isNew(group uint32) []expr.Any {
	return append(enters(group),
		&expr.Ct{Key: expr.CtKeySTATUS, Register: reg},
		mask(confirmed),
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: make([]byte, 4)})
}

// limitResumed limits how many resumed connections a link has: connections of TCP and SCTP that the
// kernel first sees in their middle. The last rule of each protocol lets these connections skip the other
// rules. A server in a pod begins such connections when it sends to clients that have gone, or that have
// ended its connections for the node alone; without a share of their own they would use up the server's.
// Resumed connections are few, so the rules count all of them.
//
//	iifgroup 1073741824 ct status ! confirmed tcp flags ! syn
//		update @tired { iif limit rate over 8192/minute burst 4096 packets } drop
//	iifgroup 1073741824 ct status ! confirmed tcp flags ! syn add @resumed { iif ct count over 4096 } drop
//	iifgroup 1073741824 ct status ! confirmed tcp flags ! syn accept
//	(the same with meta l4proto sctp @th,96,8 != 1)
func limitResumed(group, most uint32) (rules []rule) {
	sctp, isLaterChunk := notInit()
	for _, middle := range []struct {
		words string
		exprs []expr.Any
	}{{"tcp flags ! syn", syn(expr.CmpOpEq)}, {sctp, isLaterChunk}} {
		begins := fmt.Sprintf("iifgroup %d ct status & confirmed == 0 %s", group, middle.words)
		isResumed := func(then ...expr.Any) []expr.Any {
			return slices.Concat(isNew(group), middle.exprs, then)
		}
		rules = append(rules,
			rule{
				text: begins + " " + takeToken(tired, most) + " drop",
				exprs: isResumed(
					&expr.Meta{Key: expr.MetaKeyIIF, Register: reg}, tokenOf(tired, most),
					&expr.Verdict{Kind: expr.VerdictDrop}),
			},
			rule{
				text: fmt.Sprintf("%s add @%s { iif ct count over %d } drop", begins, resumed.name, most),
				exprs: isResumed(
					&expr.Meta{Key: expr.MetaKeyIIF, Register: reg},
					&expr.Dynset{
						SrcRegKey: reg, SetName: resumed.name, Operation: unix.NFT_DYNSET_OP_ADD,
						Exprs: []expr.Any{&expr.Connlimit{Count: most, Flags: expr.NFT_CONNLIMIT_F_INV}},
					},
					&expr.Verdict{Kind: expr.VerdictDrop}),
			},
			rule{
				text:  begins + " accept",
				exprs: isResumed(&expr.Verdict{Kind: expr.VerdictAccept}),
			})
	}
	return rules
}

// dropCrowded drops new connections of crowded links.
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

// isStrict lets a rule go on if a packet begins a connection of a strict link.
func isStrict(group uint32) []expr.Any {
	return append(isNew(group),
		&expr.Meta{Key: expr.MetaKeyIIF, Register: reg},
		&expr.Lookup{SourceRegister: reg, SetName: strict.name})
}

// dropStrict counts the first connection that a strict link opens after a rest, without leaving that to
// chance. If the connection is one too many, dropStrict drops it, and the link has to rest again.
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

// relent makes a strict link an ordinary link if dropStrict let the link's first connection pass, which
// means that the link has room. relent drops that connection all the same: the kernel then forgets that
// it counted the connection, and the sender tries again. Otherwise the pod would know one connection
// that is counted. The pod could close that one and open mostSampled uncounted connections in its
// place.
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

// dropHasty drops a link's new TCP connection if the link's bucket has no token for it.
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

// tokenOf returns the expression that takes a token from a link's bucket, which holds `tokens` tokens
// at most. The rule goes on only if the bucket was empty. takeToken returns the expression's text.
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

// countNew counts a sample of a link's new connections. If the link has too many connections, countNew
// drops the new one and makes the link crowded.
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

// callCrowded returns expressions, and their text, that count a connection. They make its link crowded,
// and strict, if the link has too many connections. The rule that first puts a link into @counted
// decides how the kernel counts the link's connections there, so all rules have to say the same.
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
