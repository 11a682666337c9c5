package conntrack

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
)

// Load returns how many entries the table has, and how many it can have. Both are 0 on a
// kernel without connection tracking.
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

// Bounds are how many entries one pod may have of connections that it began.
type Bounds struct {
	Closed int // Trim deletes entries of closed TCP connections, as long as the pod has more entries than this
	All    int // if the pod still has more entries than this, Trim deletes others, too
}

// hoard counts the entries of connections that one pod began: those of closed TCP
// connections, and all others.
type hoard struct{ closed, open int }

// over returns how many entries of a hoard Trim has to delete.
func (b Bounds) over(h hoard) hoard {
	closed := max(0, min(h.closed, h.closed+h.open-b.Closed))
	return hoard{closed: closed, open: max(0, min(h.open, h.closed-closed+h.open-b.All))}
}

// Trim deletes entries of pods that have begun too many connections. whose gives the
// number of the pod that has an address, of either family. Trim returns how many entries it
// deleted, by pod number.
//
// It goes over the table once to count, and once more if a pod has too many. Each pass
// takes 1.5 µs for each entry, and memory for two messages and the counts. Trim has
// sockets of its own, so that no Forget waits for it.
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

// begun returns the number of the pod that began an entry's connection; ok is false if no
// pod did. closed reports whether that is a closed TCP connection, which the rules do not
// count any more.
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
