package conntrack

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
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

// Bounds are how many entries one pod may have.
type Bounds struct {
	Closed int  // Trim deletes entries of closed TCP connections, as long as the pod has more entries than this
	All    int  // if the pod still has more entries than this, Trim deletes others, too
	Begun  int  // if the pod still has more entries than this of connections that it began, Trim deletes some of them; 0: no bound
	Others bool // connections that others have begun, and connections to the pod, count as well, unless another pod has begun them
}

// hoard counts a pod's entries by rank (see rank). Trim deletes entries of a low rank first.
type hoard [10]int

const (
	// open is the lowest rank of entries whose connection is not closed.
	open = 4
	// turns is the rank of entries that the pod has begun, and that another pod would begin anew by its next
	// packet: they would count for that pod. It is odd, like those of all entries that the pod has begun.
	turns = 9
)

// rank returns an entry's place in a hoard.
func rank(closed, translated, begun bool) (r int) {
	if !closed {
		r = open
	}
	if translated {
		r += 2
	}
	if begun {
		r++
	}
	return r
}

// over returns how many entries of a hoard Trim has to delete.
func (b Bounds) over(h hoard) (over hoard) {
	left := 0
	for _, n := range h {
		left += n
	}
	for r, n := range h {
		bound := b.Closed
		if r >= open {
			bound = b.All
		}
		over[r] = max(0, min(n, left-bound))
		left -= over[r]
	}
	if b.Begun == 0 {
		return over
	}
	begun := 0
	for r := 1; r < len(h); r += 2 {
		begun += h[r] - over[r]
	}
	for r := 1; r < len(h); r += 2 {
		more := max(0, min(h[r]-over[r], begun-b.Begun))
		over[r] += more
		begun -= more
	}
	return over
}

// Trim deletes entries of pods that have too many entries. The map whose gives the number of the pod
// that has an address, of either family. Trim returns how many entries it deleted, by pod number.
//
// Among the entries of closed connections, and among those of other connections, Trim first deletes
// entries that no NAT has touched. Such connections go on with their next packet, whereas a masqueraded
// connection is over with its entry. And if somebody made entries in the pod's name while the rules
// were missing, no NAT has touched these entries: Trim deletes them before the pod's connections with
// the world. If two entries are alike, Trim first deletes the entry that the pod has not begun, because
// others can make a pod have such entries. Last of all Trim deletes flows to another pod, but for those of TCP
// and SCTP: that pod's next packet would begin them anew, as that pod's. In the middle of a TCP connection or
// an SCTP association it would not (kernel/nft/limit.go).
//
// Trim goes over the table once to count, and once more if a pod has too many entries. Each pass takes
// 1.5 µs for each entry, and memory for two messages and the counts. Trim has sockets of its own, so
// that no Forget waits for it.
func (t *Table) Trim(ctx context.Context, whose map[netip.Addr]int, b Bounds) (gone map[int]int, err error) {
	own := &Table{at: t.at}
	defer own.Close()
	if err := own.ready(); err != nil {
		return nil, err
	}
	have := map[int]hoard{}
	_, err = own.pass(ctx, func(entry []byte) bool {
		if n, r, ok := b.hoarder(entry, whose); ok {
			h := have[n]
			h[r]++
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
		n, r, ok := b.hoarder(entry, whose)
		if !ok || left[n] == nil || left[n][r] == 0 {
			return false
		}
		left[n][r]--
		gone[n]++
		return true
	})
	if err != nil {
		err = fmt.Errorf("deleting the connections that a pod has too many: %w", err)
	}
	return gone, err
}

// hoarder returns the number of the pod for which an entry counts, and the entry's rank; ok is false if
// the entry counts for no pod. An entry counts for the pod that began its connection. If no pod began
// the connection, and if Others is set, the entry counts for the pod that the connection goes to. So no
// entry counts twice.
func (b Bounds) hoarder(entry []byte, whose map[netip.Addr]int) (n, r int, ok bool) {
	var orig ends
	var closed, translated, begun, turned bool
	for len(entry) > 0 {
		typ, value, rest := next(entry)
		entry = rest
		switch typ {
		case attrOrig:
			orig = endsOf(value)
			if n, begun = whose[orig.src]; !begun && !b.Others {
				return 0, 0, false
			}
		case attrReply: // the kernel lists the reply behind the original direction
			reply := endsOf(value)
			translated = !untranslated(orig, reply)
			if ok = begun; !begun {
				n, ok = whose[reply.src]
			} else if other, pods := whose[reply.src]; pods && other != n {
				turned = orig.proto != unix.IPPROTO_TCP && orig.proto != unix.IPPROTO_SCTP
			}
		case attrProto:
			state := inside(inside(value, attrProtoTCP), attrTCPState)
			closed = len(state) == 1 && (state[0] == tcpTimeWait || state[0] == tcpClose) // the rules do not count such a connection any more
		}
	}
	if turned {
		return n, turns, ok
	}
	return n, rank(closed, translated, begun), ok
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
