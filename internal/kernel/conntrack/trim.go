package conntrack

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
)

// Load is how many entries the table has, and how many it can have: both are 0
// without connection tracking.
//
//	conntrack -C; sysctl net.netfilter.nf_conntrack_max
func (t *Table) Load() (entries, most int, err error) {
	err = t.at.Do(func() (err error) {
		if entries, err = sysctl("nf_conntrack_count"); err == nil {
			most, err = sysctl("nf_conntrack_max")
		}
		return err
	})
	if os.IsNotExist(err) {
		return 0, 0, nil
	}
	if err != nil {
		return 0, 0, fmt.Errorf("looking how full connection tracking is: %w", err)
	}
	return entries, most, nil
}

// sysctl reads a number of the calling thread's network namespace.
func sysctl(name string) (int, error) {
	raw, err := os.ReadFile("/proc/sys/net/netfilter/" + name)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(raw)))
}

// Bounds are how many entries one may have who has begun their connections.
type Bounds struct {
	Closed int // with more than that, closed TCP connections go until it has that many
	All    int // with more than that in spite of it, others go, too
}

// hoard is what one has begun.
type hoard struct{ closed, open int }

// over is what is to go of a hoard.
func (b Bounds) over(h hoard) hoard {
	closed := max(0, min(h.closed, h.closed+h.open-b.Closed))
	return hoard{closed: closed, open: max(0, min(h.open, h.closed-closed+h.open-b.All))}
}

// Trim deletes entries of those that have begun too many. whose numbers who has an
// address, of either family; the result is how many entries are gone, by number.
//
// It goes over the table once to count, in memory for two messages and the numbers,
// and once more if somebody has too many: 1.5 µs an entry each time. It has sockets
// of its own, so that no Forget waits for it.
func (t *Table) Trim(ctx context.Context, whose map[netip.Addr]int, b Bounds) (gone map[int]int, err error) {
	own := &Table{at: t.at}
	defer own.Close()
	if err := own.ready(); err != nil {
		return nil, err
	}
	have := map[int]hoard{}
	_, err = own.pass(ctx, func(entry []byte) bool {
		if n, closed, ok := begun(entry, whose); ok {
			h := have[n]
			if closed {
				h.closed++
			} else {
				h.open++
			}
			have[n] = h
		}
		return false
	})
	if err != nil {
		return nil, fmt.Errorf("counting connections: %w", err)
	}
	left := map[int]*hoard{}
	for n, h := range have {
		if over := b.over(h); over != (hoard{}) {
			left[n] = &over
		}
	}
	if len(left) == 0 {
		return nil, nil
	}
	gone = map[int]int{}
	_, err = own.pass(ctx, func(entry []byte) bool {
		n, closed, ok := begun(entry, whose)
		if !ok || left[n] == nil {
			return false
		}
		more := &left[n].open
		if closed {
			more = &left[n].closed
		}
		if *more == 0 {
			return false
		}
		*more--
		gone[n]++
		return true
	})
	if err != nil {
		err = fmt.Errorf("deleting connections that are too many: %w", err)
	}
	return gone, err
}

// begun returns the number of who has begun an entry's connection, and whether that is
// a TCP connection which nobody counts any more.
func begun(entry []byte, whose map[netip.Addr]int) (n int, closed, ok bool) {
	for len(entry) > 0 {
		typ, value, rest := next(entry)
		entry = rest
		switch typ {
		case attrOrig:
			if n, ok = whose[endsOf(value).src]; !ok {
				return 0, false, false
			}
		case attrProto:
			state := inside(inside(value, attrProtoTCP), attrTCPState)
			closed = len(state) == 1 && (state[0] == tcpTimeWait || state[0] == tcpClose)
		}
	}
	return n, closed, ok
}

// inside returns the value of the first attribute of a type; nil if there is none.
func inside(attrs []byte, typ uint16) []byte {
	for len(attrs) > 0 {
		t, value, rest := next(attrs)
		if t == typ {
			return value
		}
		attrs = rest
	}
	return nil
}
