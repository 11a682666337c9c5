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
	deleteMetrics = 2             // TCP_METRICS_CMD_DEL
	metricsAddr4  = 1             // TCP_METRICS_ATTR_ADDR_IPV4
	metricsAddr6  = 2             // TCP_METRICS_ATTR_ADDR_IPV6
)

// metrics deletes TCP's metrics in one network namespace.
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

// forgetMetrics deletes TCP's metrics of some addresses. The caller holds t.mu.
func (t *Table) forgetMetrics(addrs []netip.Addr) error {
	if t.tcp == nil {
		return nil
	}
	err := t.tcp.forget(addrs)
	if err == nil {
		return nil
	}
	t.tcp.close()
	t.tcp = nil
	if errors.Is(err, unix.EPERM) {
		return nil // t.tcp stays nil, so later calls do not ask again
	}
	t.broken() // the next call opens all sockets anew
	return kernel.Classify(fmt.Errorf("deleting TCP's metrics of addresses: %w", err))
}

func (m *metrics) close() {
	if m != nil {
		m.s.Close()
	}
}
