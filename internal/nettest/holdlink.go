package nettest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel/ns"
)

// HoldLink keeps a reference to an interface of a network namespace, as a program with CAP_NET_RAW and
// CAP_NET_ADMIN there can. A namespace can have one such program, because HoldLink makes links there
// (stall0). A packet socket whose frames wait at another interface has no room for one more frame, by the
// held interface: it waits for room. When the interface is deleted, the kernel waits for the socket. The
// returned function lets the interface go; so does the test's end.
func HoldLink(t testing.TB, at *ns.Netns, name string) (letGo func()) {
	t.Helper()
	var fd int
	stall := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "stall0"}, PeerName: "stall1"}
	frame := make([]byte, 1400)
	frame[12] = 8 // IPv4
	to := func(l netlink.Link) *unix.SockaddrLinklayer {
		return &unix.SockaddrLinklayer{Protocol: 8, Ifindex: l.Attrs().Index, Halen: 6}
	}
	Must(t, DoIn(at, func() (err error) {
		if err = netlink.LinkAdd(stall); err != nil {
			return err
		}
		for _, end := range []string{"stall0", "stall1"} {
			if err = netlink.LinkSetUp(Link(t, end)); err != nil {
				return err
			}
		}
		// netlink.Tbf cannot say a burst in bytes (TCA_TBF_BURST), which a rate as low as this one needs.
		out, err := exec.Command("tc", strings.Fields("qdisc add dev stall0 root tbf rate 8bit burst 2000 limit 1000000")...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("tc: %w: %s", err, out)
		}
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 20_000)
	}))
	var stalled, held netlink.Link
	Must(t, DoIn(at, func() error { stalled, held = Link(t, "stall0"), Link(t, name); return nil }))
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
