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

// What TCP remembers of an address that the node has spoken to (include/uapi/linux/
// tcp_metrics.h): round trip time, windows, a cookie, for an hour. The address's
// next pod would be spoken to as if it was the former one.
const (
	metricsFamily = "tcp_metrics" // of generic netlink
	deleteMetrics = 2             // TCP_METRICS_CMD_DEL
	metricsAddr4  = 1             // TCP_METRICS_ATTR_ADDR_IPV4
	metricsAddr6  = 2             // TCP_METRICS_ATTR_ADDR_IPV6
)

// metrics is TCP's memory of one network namespace.
type metrics struct {
	family uint16
	s      *socket
}

// metricsBatch is how many deletions go into one system call. Nearly all of them fail,
// as nothing is remembered, and their answers have to fit a receive buffer.
const metricsBatch = 64

// openMetrics opens the calling thread's. nil: the kernel keeps none, or does not say.
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

// forget deletes what is remembered of some addresses: a look-up for each. The error
// is an errno: unix.EPERM for who is root in a user namespace alone. After any error
// the socket is of no more use.
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

// forgetMetrics has TCP forget some addresses. t.mu is held.
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
		return nil // and will not be asked again
	}
	t.broken() // the next call opens all of it anew
	return kernel.Classify(fmt.Errorf("forgetting what TCP remembers: %w", err))
}

func (m *metrics) close() {
	if m != nil {
		m.s.Close()
	}
}
