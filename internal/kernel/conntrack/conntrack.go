// Package conntrack deletes what the kernel remembers of traffic: entries of connection
// tracking and TCP's metrics of addresses. It also ends the node's own TCP connections.
package conntrack

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/ns"
)

// maxDumps is how often forget goes over a table that keeps changing while the kernel lists it.
const maxDumps = 5

// Table is the connection tracking table of one network namespace. Its methods
// may be called concurrently; ForgetUnless, ForgetExposed and ForgetMapped go over the table one at a time.
type Table struct {
	at      *ns.Netns
	mu      sync.Mutex
	list    *socket // receives the list of entries while the socket delete deletes entries; nil: the sockets are not open
	delete  *socket
	tcp     *metrics // opened with the other sockets; nil: the kernel keeps no metrics, or lets us delete none
	sockets *socket  // opened with the other sockets; nil: the kernel cannot end TCP connections
	closed  bool
}

// Open opens the table of a namespace, which must stay open for as long as the Table is.
// It also succeeds on a kernel without connection tracking.
func Open(at *ns.Netns) (*Table, error) {
	t := &Table{at: at}
	if err := t.ready(); err != nil && !errors.Is(err, kernel.ErrUnsupported) {
		return nil, err
	}
	return t, nil
}

// Close closes the table's sockets.
func (t *Table) Close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	t.broken()
}

// Forget first ends the node's own TCP connections to the addresses. Then it deletes every
// entry that names one of the addresses, as source or destination and in either direction,
// in one pass over the table for both families. Last it deletes TCP's metrics of the
// addresses.
// Forget takes 1.5 µs for each entry of the table, and memory for two messages. On a kernel without
// connection tracking there is nothing to delete.
//
//	conntrack -D -s ADDR; conntrack -D -d ADDR; and the same with -r and -q
//	ip tcp_metrics delete ADDR
//
// Linux 6.8 and later can find the entries of an address themselves (CTA_FILTER), but only
// as the source or as the destination, and in one direction. So each address would need
// four walks over the whole machine's hash table, and each walk takes a third as long as one pass of
// Forget over all entries.
func (t *Table) Forget(addrs []netip.Addr) error {
	return t.ForgetUnless(addrs, func(netip.Addr) bool { return false })
}

// ForgetUnless is Forget for addresses that somebody may get meanwhile: it asks right before it deletes
// something, and leaves alone what only addresses have that are spared by then. Forget may have to wait for
// its turn, and for the kernel.
func (t *Table) ForgetUnless(addrs []netip.Addr, spared func(netip.Addr) bool) error {
	if len(addrs) == 0 {
		return nil
	}
	all := make(map[netip.Addr]bool, len(addrs))
	for _, a := range addrs {
		all[a] = true
	}
	among := func(a netip.Addr) bool { return all[a] && !spared(a) }
	if err := t.endSockets(all, among); err != nil {
		return err
	}
	if err := t.forget(func(entry []byte) bool { return involves(entry, among) }); err != nil {
		return err
	}
	return t.forgetMetrics(addrs, among)
}

// Named returns the addresses for which the function `is` returns true and of which Forget has something
// to forget, each once: those that the table's entries name, the peers of the node's own TCP connections, and
// those of TCP's metrics. A connection needs no entry: rules may keep it from being tracked (notrack),
// and somebody may have emptied the table.
// Named takes as long as Forget, and 2 µs more for each TCP connection of the node.
//
//	conntrack -L; ss -t; ip tcp_metrics
func (t *Table) Named(is func(netip.Addr) bool) ([]netip.Addr, error) {
	found := map[netip.Addr]bool{}
	note := func(a netip.Addr) {
		if is(a) {
			found[a] = true
		}
	}
	err := t.forget(func(entry []byte) bool {
		involves(entry, func(a netip.Addr) bool {
			note(a)
			return false
		})
		return false
	})
	if err == nil {
		err = t.peers(note)
	}
	if err == nil {
		err = t.measured(note)
	}
	return slices.Collect(maps.Keys(found)), err
}

// forget deletes every entry for which the function is reports true. It goes over the table again if
// the table changed meanwhile.
func (t *Table) forget(is func(entry []byte) bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	err := t.ready()
	for n := 0; err == nil && n < maxDumps; n++ {
		var interrupted bool
		if interrupted, err = t.pass(context.Background(), is); err == nil && !interrupted {
			return nil
		}
		if err == nil && n == maxDumps-1 {
			err = kernel.As(kernel.ErrInterrupted, fmt.Errorf("the table changed while it was read, %d times", maxDumps))
		}
	}
	if errors.Is(err, kernel.ErrUnsupported) {
		return nil
	}
	if !errors.Is(err, kernel.ErrInterrupted) {
		t.broken()
	}
	return fmt.Errorf("forgetting connections: %w", err)
}

// pass goes over the table once and deletes every entry for which the function is reports true. pass
// deletes while it still receives the list: the kernel goes on at the right place in a table that
// changes. After an error, such as the context's, the sockets are of no more use.
func (t *Table) pass(ctx context.Context, is func(entry []byte) bool) (interrupted bool, err error) {
	batch := t.delete.batch()
	interrupted, err = t.list.entries(func(family byte, entry []byte) error {
		if err := ctx.Err(); err != nil || !is(entry) {
			return err
		}
		if batch.add(family, entry) {
			return nil
		}
		if err := batch.flush(); err != nil {
			return err
		}
		batch.add(family, entry)
		return nil
	})
	if err == nil {
		err = batch.flush()
	}
	return interrupted, kernel.Classify(err)
}

// ready opens the sockets, if they are not open.
func (t *Table) ready() error {
	if t.closed {
		return fmt.Errorf("opening conntrack: %w", unix.EBADF)
	}
	if t.list != nil {
		return nil
	}
	err := t.at.Do(func() (err error) {
		if t.list, err = openSocket(unix.NETLINK_NETFILTER); err != nil {
			return err
		}
		if t.delete, err = openSocket(unix.NETLINK_NETFILTER); err != nil {
			return err
		}
		if t.tcp, err = openMetrics(); err != nil {
			return err
		}
		if t.sockets, err = openSocket(unix.NETLINK_SOCK_DIAG); errors.Is(err, unix.EPROTONOSUPPORT) {
			return nil
		}
		return err
	})
	if err != nil {
		t.broken()
		return kernel.Classify(fmt.Errorf("opening conntrack: %w", err))
	}
	return nil
}

// broken closes the sockets; ready opens them anew.
func (t *Table) broken() {
	for _, s := range []**socket{&t.list, &t.delete, &t.sockets} {
		if *s != nil {
			(*s).Close()
			*s = nil
		}
	}
	t.tcp.close()
	t.tcp = nil
}
