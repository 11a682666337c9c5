package nettest

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel/ns"
)

var holders atomic.Uint32 // counts HoldLink's calls, so that each has names of its own

// HoldLink keeps a reference to an interface of a network namespace, as a program with CAP_NET_RAW and
// CAP_NET_ADMIN there can. A packet socket whose frames wait at another interface has no room for one more frame, by the
// held interface: it waits for room. When the interface is deleted, the kernel waits for the socket. The
// returned function lets the interface go; so does the test's end.
func HoldLink(t testing.TB, at *ns.Netns, name string) (letGo func()) {
	t.Helper()
	var fd int
	n := holders.Add(1)
	near, far := fmt.Sprint("near", n), fmt.Sprint("far", n)
	stall := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: near}, PeerName: far}
	frame := make([]byte, 1400)
	frame[12] = 8 // IPv4
	to := func(l netlink.Link) *unix.SockaddrLinklayer {
		return &unix.SockaddrLinklayer{Protocol: 8, Ifindex: l.Attrs().Index, Halen: 6}
	}
	Must(t, DoIn(at, func() (err error) {
		if err = netlink.LinkAdd(stall); err != nil {
			return err
		}
		for _, end := range []string{near, far} {
			if err = netlink.LinkSetUp(Link(t, end)); err != nil {
				return err
			}
		}
		if err = slow(Link(t, near)); err != nil {
			return err
		}
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 20_000)
	}))
	var stalled, held netlink.Link
	Must(t, DoIn(at, func() error { stalled, held = Link(t, near), Link(t, name); return nil }))
	Eventually(t, "the socket has no room", func() bool { // the interface drops frames until it is running
		return errors.Is(unix.Sendto(fd, frame, unix.MSG_DONTWAIT, to(stalled)), unix.EAGAIN)
	})
	ended, thread := make(chan struct{}), make(chan int, 1)
	go func() {
		defer close(ended)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		thread <- unix.Gettid()
		_ = unix.Sendto(fd, frame, 0, to(held)) // ENXIO at last: the interface is gone
	}()
	doing := fmt.Sprintf("/proc/self/task/%d/syscall", <-thread)
	Eventually(t, "the socket waits for room", func() bool {
		now, err := os.ReadFile(doing)
		return err == nil && strings.HasPrefix(string(now), fmt.Sprintf("%d ", unix.SYS_SENDTO))
	})
	let := false
	letGo = func() {
		if let {
			return
		}
		let = true
		err := DoIn(at, func() error { return netlink.LinkDel(stall) }) // the frames go, so that there is room
		<-ended
		Must(t, errors.Join(err, unix.Close(fd)))
	}
	t.Cleanup(letGo)
	return letGo
}

// slow lets an interface send a byte a second, behind one full frame. netlink.Tbf cannot say the burst in
// bytes, which a rate as low as this one needs.
//
//	tc qdisc add dev DEV root tbf rate 8bit burst 2000 limit 1048576
func slow(l netlink.Link) error {
	parms := nl.TcTbfQopt{Limit: 1 << 20}
	parms.Rate.Rate, parms.Rate.Linklayer = 1, 1 // Ethernet
	options := nl.NewRtAttr(nl.TCA_OPTIONS, nil)
	options.AddRtAttr(nl.TCA_TBF_PARMS, parms.Serialize())
	options.AddRtAttr(nl.TCA_TBF_BURST, nl.Uint32Attr(2000))
	req := nl.NewNetlinkRequest(unix.RTM_NEWQDISC, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
	req.AddData(&nl.TcMsg{Family: nl.FAMILY_ALL, Ifindex: int32(l.Attrs().Index), Parent: netlink.HANDLE_ROOT})
	req.AddData(nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated("tbf")))
	req.AddData(options)
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}
