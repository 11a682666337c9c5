// Package ipam knows which addresses of which pools can be given out. It is a view of the
// ledger, kept in memory: it stores nothing, has no clock and does no I/O. Its caller fills
// it from the ledger at the start (Restore), claims addresses before it commits them
// (Claim, Unclaim), and tells it which addresses commits have freed (Free). The ledger
// alone decides: if the two disagree, Restore puts the view right at any time.
//
// An address stays unused as long as possible. A pool first gives out addresses that nobody
// has had yet, in the order of its CIDRs; then the address that has been free for the
// longest time, in whichever CIDR of the family it is. A freed address is in cooldown until
// a time that the ledger says, and is not given out until then. After that it is due: the
// caller asks for due addresses (Due), makes the kernel forget their traffic, and reports
// that (Rinsed). Only then is the address free. An address without a cooldown is free at
// once.
//
// In a pool so large that there is always a fresh address, the view would have to remember
// every address that it ever gave out. So it remembers at most 65,536 free addresses per
// family; once it has more, it gives out the oldest of them before fresh ones.
//
// Claiming and freeing cost the same in every pool, full or empty, because nothing is ever
// searched. See space.
package ipam
