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
		return 0, 0, fmt.Errorf("reading how full connection tracking is: %w", err)
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

// hoard counts the entries of connections that one pod began.
type hoard struct{ closed, open kinds }

// kinds counts entries: those that no NAT has touched, and the others.
type kinds struct{ plain, translated int }

func (k kinds) all() int { return k.plain + k.translated }

// first returns n entries of k, plain ones before others.
func (k kinds) first(n int) kinds {
	n = max(0, min(n, k.all()))
	plain := min(k.plain, n)
	return kinds{plain, n - plain}
}

// over returns how many entries of a hoard Trim has to delete.
func (b Bounds) over(h hoard) hoard {
	closed := h.closed.first(h.closed.all() + h.open.all() - b.Closed)
	return hoard{closed, h.open.first(h.closed.all() - closed.all() + h.open.all() - b.All)}
}

// of returns the counter for an entry.
func (h *hoard) of(closed, plain bool) *int {
	k := &h.open
	if closed {
		k = &h.closed
	}
	if plain {
		return &k.plain
	}
	return &k.translated
}

// Trim deletes entries of pods that have begun too many connections. whose gives the
// number of the pod that has an address, of either family. Trim returns how many entries it
// deleted, by pod number.
//
// Of closed connections, and of others, it first deletes those that no NAT has touched. They
// go on with their next packet, whereas a masqueraded connection is over with its entry. And
// if somebody made entries in the pod's name while the rules were missing, these are among
// them: they do not cost the pod its connections with the world.
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
		if n, closed, plain, ok := begun(entry, whose); ok {
			h := have[n]
			*h.of(closed, plain)++
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
		n, closed, plain, ok := begun(entry, whose)
		if !ok || left[n] == nil {
			return false
		}
		more := left[n].of(closed, plain)
		if *more == 0 {
			return false
		}
		*more--
		gone[n]++
		return true
	})
	if err != nil {
		err = fmt.Errorf("deleting the connections that a pod has too many: %w", err)
	}
	return gone, err
}

// begun returns the number of the pod that began an entry's connection; ok is false if no
// pod did. closed reports whether that is a closed TCP connection, which the rules do not
// count any more; plain, that no NAT has touched it.
func begun(entry []byte, whose map[netip.Addr]int) (n int, closed, plain, ok bool) {
	var orig ends
	for len(entry) > 0 {
		typ, value, rest := next(entry)
		entry = rest
		switch typ {
		case attrOrig:
			orig = endsOf(value)
			if n, ok = whose[orig.src]; !ok {
				return 0, false, false, false
			}
		case attrReply: // the kernel lists it behind the original direction
			plain = untranslated(orig, endsOf(value))
		case attrProto:
			state := inside(inside(value, attrProtoTCP), attrTCPState)
			closed = len(state) == 1 && (state[0] == tcpTimeWait || state[0] == tcpClose)
		}
	}
	return n, closed, plain, ok
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
