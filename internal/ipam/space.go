package ipam

import (
	"math"
	"net/netip"
	"time"
)

// space has the state of the addresses of some CIDRs from which addresses are given out together:
// the CIDRs of one family of a pool. (A pool's draining CIDRs are a space too, from
// which nothing is given out.)
//
// An address that was never given out has no state: its offset is at or beyond its CIDR's
// fresh one. Every other address has a slot for ever, and is in one of these states:
//   - used;
//   - resting: in cooldown; space.ends has the end of the cooldown;
//   - due: the cooldown is over, but the kernel may still remember the address's traffic;
//   - rested: free.
//
// The slots themselves form two lists, one of the due and one of the rested addresses, and each
// list begins with the address that has been in it longest. So any address can be found
// (cidr.index), taken out of its list and put into a list in constant time, and a list never has
// entries that have to be skipped.
type space struct {
	cidrs    []*cidr
	at       int    // the index of the first CIDR that may have a fresh address
	slots    []slot // the first slots are the lists': each has its list's head (next) and tail (prev)
	ends     ends
	length   [lists]int // of each list
	used     int
	resting  int
	remember int // with more rested addresses than this, the oldest is given out before fresh ones
}

type slot struct {
	off        uint64
	until      int64  // resting: the end of the cooldown, in Unix nanoseconds; due: the number of its last Pass, or 0; used: 0, doubtful or settled
	prev, next uint32 // the slots before and behind it in its list
	cidr       uint32 // index in space.cidrs
	state      state
}

// doubtful and settled are marks of an address in use (space.doubt, IPAM.Settle).
const doubtful, settled = 1, 2

type state uint8

const (
	rested state = iota
	due
	resting
	used

	lists = 2 // rested and due: slots[rested] and slots[due] are the lists', and no address has them
)

// newSpace returns a space of CIDRs of which all addresses are fresh; nil if there are no
// CIDRs.
func newSpace(prefixes []netip.Prefix, p *pool, remember int) *space {
	if len(prefixes) == 0 {
		return nil
	}
	s := &space{slots: make([]slot, lists), remember: remember}
	s.slots[due].prev, s.slots[due].next = uint32(due), uint32(due)
	for i, prefix := range prefixes {
		c := newCIDR(prefix)
		c.pool, c.space, c.pos = p, s, uint32(i)
		s.cidrs = append(s.cidrs, c)
	}
	return s
}

// use makes an address used, whatever its state was.
func (s *space) use(c *cidr, off uint64) { s.enterUsed(s.fetch(c, off)) }

// put makes an address the last of the rested ones, whatever its state was. If the address is in use and
// doubtful, put makes it due.
func (s *space) put(c *cidr, off uint64) {
	list := rested
	if s.doubts(c, off) {
		list = due
	}
	s.enter(list, s.fetch(c, off))
}

// mark says of an address in use that others may have begun connections to it since a pass has looked for
// them (doubtful, IPAM.Taint), or that nobody can (settled, IPAM.Settle).
func (s *space) mark(c *cidr, off uint64, as int64) {
	if s.isUsed(c, off) {
		s.slots[c.index.slot(off)].until = as
	}
}

// doubts reports whether an address is in use and doubtful.
func (s *space) doubts(c *cidr, off uint64) bool {
	return s.isUsed(c, off) && s.slots[c.index.slot(off)].until == doubtful
}

// rest makes an address resting, whatever its state was. If it is resting already, the later
// end counts. Without a cooldown (until is the least int64) an address in use is rested at once,
// and not due: the kernel was made to forget its traffic at the release, and the address had no
// time for new traffic since, unless it is doubtful.
func (s *space) rest(c *cidr, off uint64, until int64) {
	i := c.index.slot(off)
	switch {
	case until == math.MinInt64:
		if i == 0 || s.slots[i].state == used {
			s.put(c, off)
		}
		return
	case i == 0:
		i = s.add(c, off)
	case s.slots[i].state == resting && s.slots[i].until >= until:
		return
	default:
		s.leave(i)
	}
	x := &s.slots[i]
	x.state, x.until = resting, until
	s.ends.push(until, i)
	s.resting++
	c.resting++
}

// fetch returns the slot of an address, and takes it out of its state.
func (s *space) fetch(c *cidr, off uint64) uint32 {
	i := c.index.slot(off)
	if i == 0 {
		return s.add(c, off)
	}
	s.leave(i)
	return i
}

// add gives an address that has no slot so far a slot, which is in no state yet.
func (s *space) add(c *cidr, off uint64) uint32 {
	i := uint32(len(s.slots))
	s.slots = append(s.slots, slot{off: off, cidr: c.pos})
	c.index.set(off, i)
	return i
}

// leave takes a slot out of the figures and the list of its state. The cooldown's end of a resting
// slot stays in space.ends; settle will see that this end is stale.
func (s *space) leave(i uint32) {
	x := &s.slots[i]
	switch x.state {
	case used:
		s.used--
		s.cidrs[x.cidr].used--
	case resting:
		s.resting--
		s.cidrs[x.cidr].resting--
	default:
		s.length[x.state]--
		if x.state == due {
			s.cidrs[x.cidr].due--
		}
		s.slots[x.prev].next, s.slots[x.next].prev = x.next, x.prev
	}
}

func (s *space) enterUsed(i uint32) {
	x := &s.slots[i]
	x.state, x.until = used, 0
	s.used++
	s.cidrs[x.cidr].used++
}

// enter makes a slot the last of a list.
func (s *space) enter(list state, i uint32) {
	x, tail := &s.slots[i], s.slots[list].prev
	x.state, x.prev, x.next = list, tail, uint32(list)
	s.slots[tail].next, s.slots[list].prev = i, i
	s.length[list]++
	if list == due {
		x.until = 0
		s.cidrs[x.cidr].due++
	}
}

// settle ends the cooldowns that are over at now (Unix nanoseconds): their addresses are
// due.
func (s *space) settle(now int64) {
	for {
		e, ok := s.ends.front()
		if !ok {
			return
		}
		current := s.current(e)
		if current && e.until > now {
			return
		}
		s.ends.pop()
		if current {
			s.leave(e.slot)
			s.enter(due, e.slot)
		}
	}
}

// current reports whether an end is still the end of its address's cooldown. Since it was
// pushed, Restore may have claimed the address, or its cooldown may have got a later end.
func (s *space) current(e end) bool {
	x := s.slots[e.slot]
	return x.state == resting && x.until == e.until
}

// free reports whether the space has an address to give out. The space must be settled.
func (s *space) free() bool { return s.length[rested] > 0 || s.seek() }

// seek moves space.at and cidr.fresh on to the next address that nobody has had; false if there is
// none. It steps over addresses that were given out on request, over each only once.
func (s *space) seek() bool {
	for ; s.at < len(s.cidrs); s.at++ {
		for c := s.cidrs[s.at]; c.fresh <= c.last; c.fresh++ {
			if c.index.slot(c.fresh) == 0 {
				return true
			}
		}
	}
	return false
}

// take gives out an address. The space must have one (free).
func (s *space) take() netip.Addr {
	if s.length[rested] <= s.remember && s.seek() {
		c := s.cidrs[s.at]
		off := c.fresh
		c.fresh++
		s.enterUsed(s.add(c, off))
		return c.addr(off)
	}
	i := s.slots[rested].next
	s.leave(i)
	s.enterUsed(i)
	return s.cidrs[s.slots[i].cidr].addr(s.slots[i].off)
}

// next returns when the first cooldown ends; false if there is none. The space must be
// settled.
func (s *space) next() (time.Time, bool) {
	e, ok := s.ends.front()
	if !ok {
		return time.Time{}, false
	}
	return time.Unix(0, e.until), true
}

// size returns how many addresses can be given out, including those in use; at most the
// largest uint64.
func (s *space) size() uint64 {
	var sum uint64
	for _, c := range s.cidrs {
		if sum += c.size(); sum < c.size() {
			return math.MaxUint64
		}
	}
	return sum
}

// nanos returns t in Unix nanoseconds. A time before or after the years that an int64 can
// hold (1678 to 2262) is the least or the greatest int64.
func nanos(t time.Time) int64 {
	switch sec := t.Unix(); {
	case sec <= math.MinInt64/int64(time.Second):
		return math.MinInt64
	case sec >= math.MaxInt64/int64(time.Second):
		return math.MaxInt64
	}
	return t.UnixNano()
}
