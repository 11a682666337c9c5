// Package ipam knows which addresses of which pools can be given out. It is a
// view of the ledger, kept in memory: it stores nothing, has no clock and does
// no I/O. Its caller fills it from the ledger at the start (Restore), claims
// before it commits (Claim, Unclaim), and tells it what commits have freed
// (Free). The ledger alone decides: where the two disagree, Restore puts the
// view right at any time.
//
// An address rests as long as possible. Those that nobody has had yet are
// given out first, in the order of the pool's CIDRs; then the one that has
// been free for the longest time, whichever CIDR of the family it is in. A
// freed address is in cooldown until a time that the ledger says; until then
// it is counted apart and never given out. Then it is due: whoever asks Due
// forgets what the kernel remembers of its traffic, and says so (Rinsed). Only
// then is it free, unless it had no cooldown.
//
// Where a pool is so large that there is always a fresh address, the view
// would remember every address it has ever given out. It remembers the last
// 65,536 that are free, and gives out the oldest of those beyond them.
//
// Claiming and freeing cost the same in every pool, full or empty: nothing is
// ever searched. See space.
package ipam
