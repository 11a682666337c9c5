package link_test

import (
	"encoding/binary"
	"net"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/nettest"
)

// A pod that sends ARP requests in everybody's name does not fill the host's table of
// neighbours. ARP passes no rule of nftables, and by default a node has room for 1,024
// neighbours only.
func TestARPLeavesNothing(t *testing.T) {
	f := newFixture(t)
	f.forwarding()
	pod, h := f.pod("4")
	link := f.show(h)
	must(t, pod.Do(func() error {
		s, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(s)
		eth0, err := netlink.LinkByName(spec(h).Ifname)
		if err != nil {
			return err
		}
		for i := range 10 {
			whoHas := askFor(eth0.Attrs().HardwareAddr, net.IPv4(203, 0, 113, byte(i)), node4.AsSlice())
			if err := unix.Sendto(s, whoHas, 0, &unix.SockaddrLinklayer{Ifindex: eth0.Attrs().Index}); err != nil {
				return err
			}
		}
		return nil
	}))
	nettest.Ping(t, pod, node4) // behind the ARP requests in the same queue
	neighbours := nettest.List(t, func() ([]netlink.Neigh, error) { return netlink.NeighList(link.Index, netlink.FAMILY_V4) })
	for _, n := range neighbours {
		if !n.IP.Equal(spec(h).Addresses[0].AsSlice()) {
			t.Errorf("the host knows %s", n.IP)
		}
	}
	if len(neighbours) == 0 {
		t.Error("the host does not know the pod")
	}
}

// askFor returns a broadcast ARP request (RFC 826): who has target, tell sender.
func askFor(from net.HardwareAddr, sender, target net.IP) []byte {
	b := append([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, from...)
	for _, field := range []uint16{unix.ETH_P_ARP, 1, unix.ETH_P_IP, 6<<8 | 4, 1} {
		b = binary.BigEndian.AppendUint16(b, field)
	}
	b = append(append(b, from...), sender.To4()...)
	return append(append(b, make([]byte, 6)...), target.To4()...)
}
