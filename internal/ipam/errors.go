package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// Reasons why a requested address cannot be given out. They come in an *AddrError, except
// ErrUnknownPool, which is wrapped with the pool's name.
var (
	ErrUnknownPool = errors.New("no such pool")
	ErrOutside     = errors.New("not in the pool")
	ErrUnfit       = errors.New("not an address that can be given out")
	ErrTwice       = errors.New("a second address of one family")
	ErrTaken       = errors.New("in use")
	ErrResting     = errors.New("in cooldown")
	ErrElsewhere   = errors.New("somebody else's: the node has a route to this address alone")
	ErrDue         = errors.New("not free until the node has forgotten the last pod's traffic")
)

// AddrError says why a requested address cannot be given out.
type AddrError struct {
	Pool  string
	Addr  netip.Addr
	Err   error     // ErrOutside, ErrUnfit, ErrTwice, ErrTaken, ErrElsewhere, ErrResting or ErrDue
	Until time.Time // ErrResting: the end of the cooldown
}

func (e *AddrError) Error() string {
	s := fmt.Sprintf("pool %s: requested address %s: %v", e.Pool, e.Addr, e.Err)
	if !e.Until.IsZero() {
		s += " until " + e.Until.UTC().Format(time.RFC3339)
	}
	return s
}

func (e *AddrError) Unwrap() error { return e.Err }

// ExhaustedError says that a pool has no free address of a family that it has.
type ExhaustedError struct {
	Pool     string
	Family   string    // IPv4, IPv6; "": both
	Size     uint64    // addresses that the pool can give out in all
	Used     int       // how many of these are in use
	Resting  int       // how many are in cooldown or due
	Due      int       // how many are free as soon as they are rinsed
	NextFree time.Time // end of the first cooldown that is not over; zero: none
	Lost     bool      // the ledger was lost (Quarantine): all addresses rest until NextFree, and until they are rinsed
}

func (e *ExhaustedError) Error() string {
	if e.Lost && e.Due > 0 {
		return fmt.Sprintf("pool %s gives out no address until the node has forgotten the traffic of all addresses that pods may have had: the ledger was lost", e.Pool)
	}
	if e.Lost {
		return fmt.Sprintf("pool %s gives out no address until %s: the ledger was lost, and only it knew which addresses rest",
			e.Pool, e.NextFree.UTC().Format(time.RFC3339))
	}
	s := fmt.Sprintf("pool %s has no free %s address: %d in all, %d in use, %d in cooldown",
		e.Pool, e.Family, e.Size, e.Used, e.Resting)
	switch {
	case e.Due > 0:
		s += fmt.Sprintf(", %d of them only until the node has forgotten the last pods' traffic", e.Due)
	case !e.NextFree.IsZero():
		s += ", the first of them until " + e.NextFree.UTC().Format(time.RFC3339)
	}
	return s
}
