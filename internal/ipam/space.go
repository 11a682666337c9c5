package ipam

import (
	"math"
	"net/netip"
	"time"
)

// space is the state of the addresses of some CIDRs that are given out as one:
// those of a pool's one family. (A pool's draining CIDRs are a space too, of
// which nothing is given out.)
//
// An address that was never given out has no state: it lies at or beyond its
// CIDR's fresh offset. Every other one has a slot for ever. It is used; or
// resting, and then among the ends of cooldowns; or due, its cooldown being
// over but not all traces of its traffic forgotten; or rested. Those that are
// due and those that are rested are in two lists that the slots themselves
// form, the longest of each first. So any of them can be found (cidr.index),
// taken out of its list and put into it in constant time, and nothing is left
// in a list that must be skipped.
type space struct {
	cidrs    []*cidr
	at       int    // no CIDR before it has a fresh address
	slots    []slot // the first have each list's head (next) and tail (prev)
	ends     ends
	length   [lists]int // of each list
	used     int
	resting  int
	remember int // rested ones beyond which the oldest goes before fresh ones
}

type slot struct {
	off        uint64
	until      int64  // while it is resting: Unix nanoseconds; due: its last Pass, or 0
	prev, next uint32 // slots, while it is in a list
	cidr       uint32 // index in space.cidrs
	state      state
}

type state uint8

const (
	rested state = iota
	due
	resting
	used

	lists = 2 // rested and due: slots[rested] and slots[due] are no addresses'
)

// newSpace returns a space of CIDRs that are wholly fresh; nil for none.
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

// use marks an address as used, whatever it was.
func (s *space) use(c *cidr, off uint64) { s.enterUsed(s.fetch(c, off)) }

// put makes an address, whatever it was, the last of the rested ones.
func (s *space) put(c *cidr, off uint64) { s.enter(rested, s.fetch(c, off)) }

// rest marks an address as resting, whatever it was. One that is resting
// already keeps the later end. Without a cooldown it is rested at once: what is
// forgotten when it is released has no time to come back.
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

// fetch returns the slot of an address, in no state.
func (s *space) fetch(c *cidr, off uint64) uint32 {
	i := c.index.slot(off)
	if i == 0 {
		return s.add(c, off)
	}
	s.leave(i)
	return i
}

// add gives an address that has none a slot, in no state.
func (s *space) add(c *cidr, off uint64) uint32 {
	i := uint32(len(s.slots))
	s.slots = append(s.slots, slot{off: off, cidr: c.pos})
	c.index.set(off, i)
	return i
}

// leave takes a slot out of the figures and the list that its state has it in.
// A resting one stays among the ends, where settle will know it for stale.
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
	x.state = used
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

// settle ends the cooldowns that are over at now (Unix nanoseconds). What had
// one is due, and free when it is rinsed.
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

// current reports whether an end of a cooldown still stands: since then, the
// address may have been claimed by Restore, or have got a later one.
func (s *space) current(e end) bool {
	x := s.slots[e.slot]
	return x.state == resting && x.until == e.until
}

// free reports whether an address can be given out. The space is settled.
func (s *space) free() bool { return s.length[rested] > 0 || s.seek() }

// seek moves on to the next address that nobody has had; false if there is
// none. It steps over those that were asked for by themselves, over each once.
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

// take gives out an address. There is one: see free.
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

// next returns when the first cooldown ends. The space is settled.
func (s *space) next() (time.Time, bool) {
	e, ok := s.ends.front()
	if !ok {
		return time.Time{}, false
	}
	return time.Unix(0, e.until), true
}

// size returns how many addresses can be given out, used ones included; at
// most the largest uint64.
func (s *space) size() uint64 {
	var sum uint64
	for _, c := range s.cidrs {
		if sum += c.size(); sum < c.size() {
			return math.MaxUint64
		}
	}
	return sum
}

// nanos returns t in Unix nanoseconds; what is before or after the years that
// this can say (1678 to 2262) is the least or the greatest.
func nanos(t time.Time) int64 {
	switch sec := t.Unix(); {
	case sec <= math.MinInt64/int64(time.Second):
		return math.MinInt64
	case sec >= math.MaxInt64/int64(time.Second):
		return math.MaxInt64
	}
	return t.UnixNano()
}
