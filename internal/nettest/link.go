package nettest

import (
	"fmt"
	"net"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/berth-net/berth/internal/kernel/ns"
)

// Link is `ip link show NAME`, in the calling thread's namespace.
func Link(t testing.TB, name string) netlink.Link {
	t.Helper()
	l, err := netlink.LinkByName(name)
	Must(t, err)
	return l
}

// SecondNames gives an interface n second names, of 127 bytes each, the most that the kernel takes: a pod may do so in its own
// namespace, and each makes the kernel's message about the interface longer.
//
//	ip link property add dev NAME altname ALT
func SecondNames(t testing.TB, at *ns.Netns, name string, n int) {
	t.Helper()
	Must(t, at.Do(func() error {
		l := Link(t, name)
		for i := range n {
			if err := netlink.LinkAddAltName(l, fmt.Sprintf("%0127d", i)); err != nil {
				return err
			}
		}
		return nil
	}))
}

// Sources has a macvlan in the mode source hear n MACs: each makes the kernel's message about the macvlan longer by 12 bytes.
//
//	ip link set dev NAME type macvlan macaddr add MAC
func Sources(t testing.TB, at *ns.Netns, name string, n int) {
	t.Helper()
	Must(t, at.Do(func() error {
		l := Link(t, name)
		for i := range n {
			if err := netlink.MacvlanMACAddrAdd(l, net.HardwareAddr{2, 0, 0, 0, byte(i >> 8), byte(i)}); err != nil {
				return err
			}
		}
		return nil
	}))
}
