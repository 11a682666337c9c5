package conform

import (
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Uplink is the node's interface to the world, which a list may name as a "master". Spare is an
// interface that a list may give to a pod. Both lead to the network namespace Node.world, which has
// the addresses Gateway4 and Gateway6.
const (
	Uplink   = "eth0"
	Spare    = "eth1"
	NodeIP4  = "192.0.2.1"
	NodeIP6  = "2001:db8:ffff::1"
	Gateway4 = "192.0.2.254"
	Gateway6 = "2001:db8:ffff::fe"
)

// furnish makes the interfaces Uplink and Spare of a node, and sets the node's loopback up.
func (n *Node) furnish() error {
	err := n.Do(func() error {
		for i, name := range []string{Uplink, Spare} {
			mac := net.HardwareAddr{0x02, 0, 0, 0, 0xc0, byte(i)} // the same after a reboot, as a card's
			peer := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, HardwareAddr: mac}, PeerName: "w" + name, PeerNamespace: netlink.NsFd(n.world)}
			if err := netlink.LinkAdd(peer); err != nil {
				return fmt.Errorf("making %s: %w", name, err)
			}
			if i == 0 {
				if err := configure(name, NodeIP4+"/24", NodeIP6+"/64"); err != nil {
					return err
				}
			} else if err := configure(name); err != nil {
				return err
			}
		}
		return configure("lo")
	})
	if err != nil {
		return err
	}
	err = inside(n.world, func() error {
		if err := configure("w" + Spare); err != nil {
			return err
		}
		return configure("w"+Uplink, Gateway4+"/24", Gateway6+"/64")
	})
	if err != nil {
		return err
	}
	return n.Do(func() error {
		for _, gw := range []string{Gateway4, Gateway6} {
			if err := netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP(gw)}); err != nil {
				return fmt.Errorf("routing to the world: %w", err)
			}
		}
		return nil
	})
}

// configure is `ip link set NAME up` and `ip address add ... nodad`.
func configure(name string, addrs ...string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("looking for %s: %w", name, err)
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return fmt.Errorf("setting %s up: %w", name, err)
	}
	for _, text := range addrs {
		a, err := netlink.ParseAddr(text)
		if err != nil {
			return err
		}
		a.Flags = unix.IFA_F_NODAD
		if err := netlink.AddrAdd(l, a); err != nil {
			return fmt.Errorf("giving %s %s: %w", name, text, err)
		}
	}
	return nil
}
