package nettest

import (
	"testing"

	"github.com/vishvananda/netlink"
)

// Link is `ip link show NAME`, in the calling thread's namespace.
func Link(t testing.TB, name string) netlink.Link {
	t.Helper()
	l, err := netlink.LinkByName(name)
	Must(t, err)
	return l
}
