package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel"
)

// TCP remembers metrics of each address that the node has spoken to, for an hour: the
// round trip time, windows, a cookie. The kernel would use a deleted pod's metrics for the next pod
// with the same address. (include/uapi/linux/tcp_metrics.h)
const (
	metricsFamily = "tcp_metrics" // of generic netlink
	listMetrics   = 1             // TCP_METRICS_CMD_GET
	deleteMetrics = 2             // TCP_METRICS_CMD_DEL
	metricsAddr4  = 1             // TCP_METRICS_ATTR_ADDR_IPV4
	metricsAddr6  = 2             // TCP_METRICS_ATTR_ADDR_IPV6
)

// metrics lists and deletes TCP's metrics in one network namespace.
type metrics struct {
	family uint16
	s      *socket
}

// metricsBatch is how many deletions go into one system call. Nearly all of the requests fail,
// because TCP remembers nothing of the address, and the answers to failed requests have to fit into
// a receive buffer.
const metricsBatch = 64

// openMetrics opens the metrics of the calling thread's network namespace. It returns nil if the kernel
// keeps no metrics or does not let us find them.
func openMetrics() (*metrics, error) {
	family, err := netlink.GenlFamilyGet(metricsFamily)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, nil
	}
	if err != nil {
		return nil, os.NewSyscallError("asking for "+metricsFamily, err)
	}
	s, err := openSocket(unix.NETLINK_GENERIC)
	if err != nil {
		return nil, err
	}
	return &metrics{family.ID, s}, nil
}

// forget deletes the metrics of some addresses, by a look-up for each. An error contains an
// errno: unix.EPERM if the caller is root in a user namespace only. After any error the
// socket is of no more use.
//
//	ip tcp_metrics delete ADDR
func (m *metrics) forget(addrs []netip.Addr) error {
	for some := range slices.Chunk(addrs, metricsBatch) {
		batch := m.s.batch()
		for _, a := range some {
			typ, raw := uint16(metricsAddr6), a.AsSlice()
			if a.Is4() {
				typ = metricsAddr4
			}
			batch.begin(m.family, deleteMetrics, unix.SizeofNlAttr+len(raw))
			batch.out = binary.NativeEndian.AppendUint16(batch.out, uint16(unix.SizeofNlAttr+len(raw)))
			batch.out = append(binary.NativeEndian.AppendUint16(batch.out, typ), raw...)
			batch.end()
		}
		if err := batch.flush(); err != nil {
			return err
		}
	}
	return nil
}

// addrs calls each with the address of all metrics. After any error the socket is of no more use.
//
//	ip tcp_metrics
func (m *metrics) addrs(each func(netip.Addr)) error {
	m.s.seq++
	request := header(nil, m.family, unix.NLM_F_REQUEST, m.s.seq, listMetrics)
	_, err := m.s.dump(request, func(body []byte) error {
		for attrs := body[min(len(body), nfgenmsgSize):]; len(attrs) > 0; {
			typ, value, rest := next(attrs)
			attrs = rest
			if a, ok := netip.AddrFromSlice(value); ok && (typ == metricsAddr4 || typ == metricsAddr6) {
				each(a)
			}
		}
		return nil
	})
	return err
}

// forgetMetrics deletes TCP's metrics of those of some addresses that are still among them.
func (t *Table) forgetMetrics(addrs []netip.Addr, among func(netip.Addr) bool) error {
	return t.withMetrics("deleting TCP's metrics of addresses", func(m *metrics) error {
		return m.forget(slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool { return !among(a) }))
	})
}

// measured calls note with each address that TCP has metrics of.
func (t *Table) measured(note func(netip.Addr)) error {
	return t.withMetrics("listing TCP's metrics", func(m *metrics) error { return m.addrs(note) })
}

// withMetrics calls do with TCP's metrics, unless the kernel keeps none or keeps them from us.
func (t *Table) withMetrics(doing string, do func(*metrics) error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	err := t.ready()
	if err != nil && !errors.Is(err, kernel.ErrUnsupported) {
		return err
	}
	if t.tcp == nil {
		return nil
	}
	err = do(t.tcp)
	if err == nil {
		return nil
	}
	t.tcp.close()
	t.tcp = nil
	if errors.Is(err, unix.EPERM) {
		return nil // t.tcp stays nil, so later calls do not ask again
	}
	t.broken() // the next call opens all sockets anew
	return kernel.Classify(fmt.Errorf("%s: %w", doing, err))
}

func (m *metrics) close() {
	if m != nil {
		m.s.Close()
	}
}
