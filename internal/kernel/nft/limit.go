package nft

import (
	"fmt"
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
	// rest is how long a link opens no connections after one too many. At the
	// limit, some mostSampled that are not counted are opened between two rests:
	// 13 a second, by which it takes hours to fill a table of 262,144.
	rest = 5 * time.Second
)

// confirmed is IPS_CONFIRMED (linux/netfilter/nf_conntrack_common.h).
const confirmed = 1 << 3

// counted has what each link has open, crowded the links with too much.
var (
	counted = set{name: "counted", of: nftables.TypeIFIndex, dynamic: true}
	crowded = set{name: "crowded", of: nftables.TypeIFIndex, dynamic: true, timeout: rest}
)

// sampled says that one in so many connections is counted, up to a number.
func sampled(connections uint32) (oneIn, upTo uint32) {
	oneIn = min(max(connections/leastCounted, 1), mostSampled)
	return oneIn, max(connections/oneIn, 1)
}

// isNew goes on if a packet came in by a link of a group and is the first of a
// connection: later ones are of one that is confirmed, if nobody answers too.
func isNew(group uint32) []expr.Any {
	return append(enters(group),
		&expr.Ct{Key: expr.CtKeySTATUS, Register: reg},
		mask(confirmed),
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: make([]byte, 4)})
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

// countNew counts a link's new connections, and calls the link crowded if they
// are more than so many.
//
//	iifgroup 1073741824 ct status ! confirmed numgen random mod 64 0
//		add @counted { iif ct count over 1024 } add @crowded { iif } drop
func countNew(group, connections uint32) rule {
	oneIn, upTo := sampled(connections)
	words, exprs := "", isNew(group)
	if oneIn > 1 {
		words = fmt.Sprintf("numgen random mod %d 0 ", oneIn)
		exprs = append(exprs,
			&expr.Numgen{Register: reg, Modulus: oneIn, Type: unix.NFT_NG_RANDOM},
			&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: make([]byte, 4)})
	}
	return rule{
		text: fmt.Sprintf("iifgroup %d ct status & confirmed == 0 %sadd @%s { iif ct count over %d } add @%s { iif } drop",
			group, words, counted.name, upTo, crowded.name),
		exprs: append(exprs,
			&expr.Meta{Key: expr.MetaKeyIIF, Register: reg},
			&expr.Dynset{
				SrcRegKey: reg, SetName: counted.name, Operation: unix.NFT_DYNSET_OP_ADD,
				Exprs: []expr.Any{&expr.Connlimit{Count: upTo, Flags: expr.NFT_CONNLIMIT_F_INV}},
			},
			&expr.Meta{Key: expr.MetaKeyIIF, Register: reg},
			&expr.Dynset{SrcRegKey: reg, SetName: crowded.name, Operation: unix.NFT_DYNSET_OP_ADD},
			&expr.Verdict{Kind: expr.VerdictDrop}),
	}
}
