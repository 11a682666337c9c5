package nft

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/nettest"
)

// Nobody hears a packet that a pod sends from another pod's address, whatever the packet's form
// is. The node hears the same packet from the pod's own address, unless it has an IPv6 extension header.
func TestLive(t *testing.T) {
	w, a, b, _ := newNode(t)
	r := sample()
	r.Live = r.CutLow - 2
	must(t, Open(w.node.at).Replace(r))
	w.group(a, r.Live)
	w.group(b, r.Live)
	lo := w.up(w.handle(a.at), "lo")
	for _, addr := range b.addrs {
		must(w.t, w.handle(a.at).AddrAdd(lo, &netlink.Addr{IPNet: host(addr), Flags: unix.IFA_F_NODAD}))
	}
	padN := string([]byte{unix.IPPROTO_UDP, 0, 1, 4, 0, 0, 0, 0}) // an option that only pads
	wraps := []struct {
		name   string
		family int
		wrap   func(fd int) error
		size   int  // bytes of the datagram
		hidden bool // the node does not hear it from the pod's own address, either (dropHiddenFromNode)
	}{
		{"plain", 0, nil, 0, false},
		{"plain", 1, nil, 0, false},
		{"fragments", 0, nil, 4000, false},
		{"fragments", 1, nil, 4000, false},
		// RFC 791: a time stamp without entries, and a no-operation
		{"options", 0, func(fd int) error {
			return unix.SetsockoptString(fd, unix.IPPROTO_IP, unix.IP_OPTIONS, "\x07\x07\x04\x00\x00\x00\x00\x01")
		}, 0, false},
		{"hop by hop", 1, func(fd int) error { return unix.SetsockoptString(fd, unix.IPPROTO_IPV6, unix.IPV6_HOPOPTS, padN) }, 0, true},
		{"destination options", 1, func(fd int) error { return unix.SetsockoptString(fd, unix.IPPROTO_IPV6, unix.IPV6_DSTOPTS, padN) }, 0, true},
	}
	say := func(from netip.Addr, tag string, size int, wrap func(fd int) error) {
		t.Helper()
		to := w.node.addrs[1]
		if from.Is4() {
			to = w.node.addrs[0]
		}
		w.inside(a.at, func() error {
			d := net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0))}
			if wrap != nil {
				d.Control = func(_, _ string, c syscall.RawConn) error {
					var err error
					if control := c.Control(func(fd uintptr) { err = wrap(int(fd)) }); control != nil {
						return control
					}
					return err
				}
			}
			conn, err := d.Dial("udp", netip.AddrPortFrom(to, port).String())
			if err != nil {
				return err
			}
			defer conn.Close()
			_, err = conn.Write(slices.Concat([]byte(tag), make([]byte, max(0, size-len(tag)))))
			return err
		})
	}
	for _, x := range wraps {
		tag := fmt.Sprintf("%s by family %d", x.name, x.family)
		say(b.addrs[x.family], "another's "+tag, x.size, x.wrap)
		say(a.addrs[x.family], "own "+tag, x.size, x.wrap) // behind the other datagram in the same queue
		if x.hidden {
			say(a.addrs[x.family], "plain behind "+tag, 0, nil)
			nettest.Eventually(t, "plain behind "+tag, func() bool { return w.hears("plain behind "+tag, 0) })
			if w.hears("own "+tag, x.size) {
				t.Errorf("heard: %s", tag)
			}
		} else {
			nettest.Eventually(t, "own "+tag, func() bool { return w.hears("own "+tag, x.size) })
		}
		if w.hears("another's "+tag, x.size) {
			t.Errorf("heard in another's name: %s", tag)
		}
	}
}

// hears reports whether the node has received a datagram.
func (w *world) hears(tag string, size int) bool {
	_, ok := w.source(tag + string(make([]byte, max(0, size-len(tag)))) + " at " + w.node.name)
	return ok
}
