package oracle

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// links is `ip -details link`.
func links() ([]string, error) {
	all, name, err := namedLinks()
	if err != nil {
		return nil, err
	}
	var lines []string
	for _, l := range all {
		a := l.Attrs()
		line := fmt.Sprintf("link %s %s group %d mtu %d %s%s mac %s", a.Name, l.Type(), a.Group, a.MTU,
			flag(a.RawFlags, unix.IFF_UP, "up", "down"), flag(a.RawFlags, unix.IFF_LOWER_UP, ",lower_up", ""), orNone(a.HardwareAddr))
		if a.MasterIndex != 0 {
			line += " master " + name[a.MasterIndex]
		}
		if a.Alias != "" {
			line += fmt.Sprintf(" alias %q", a.Alias)
		}
		lines = append(lines, line)
	}
	return lines, nil
}

// addresses is `ip address`.
func addresses() ([]string, error) {
	name, err := linkNames()
	if err != nil {
		return nil, err
	}
	all, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("listing addresses: %w", err)
	}
	var lines []string
	for _, a := range all {
		line := fmt.Sprintf("address %s dev %s scope %d flags %#x", a.IPNet, name[a.LinkIndex], a.Scope, a.Flags&^unix.IFA_F_TENTATIVE)
		if a.Peer != nil && a.Peer.String() != a.IPNet.String() {
			line += " peer " + a.Peer.String()
		}
		lines = append(lines, line)
	}
	return lines, nil
}

// neighbours is `ip neighbour show nud permanent`, and `ip neighbour show proxy`. It leaves out
// neighbours that the kernel learns by itself, since they come and go.
func neighbours() ([]string, error) {
	name, err := linkNames()
	if err != nil {
		return nil, err
	}
	var lines []string
	all, err := netlink.NeighList(0, 0)
	if err != nil {
		return nil, fmt.Errorf("listing neighbours: %w", err)
	}
	for _, n := range all {
		if n.State&netlink.NUD_PERMANENT != 0 {
			lines = append(lines, fmt.Sprintf("neighbour %s dev %s lladdr %s permanent", n.IP, name[n.LinkIndex], orNone(n.HardwareAddr)))
		}
	}
	proxies, err := netlink.NeighProxyList(0, 0)
	if err != nil {
		return nil, fmt.Errorf("listing proxy neighbours: %w", err)
	}
	for _, n := range proxies {
		lines = append(lines, fmt.Sprintf("neighbour %s dev %s proxy", n.IP, name[n.LinkIndex]))
	}
	return lines, nil
}

// qdiscs is `tc qdisc`. It leaves out the queueing disciplines that the kernel gives each link by itself,
// which have no handle.
func qdiscs() ([]string, error) {
	name, err := linkNames()
	if err != nil {
		return nil, err
	}
	all, err := netlink.QdiscList(nil)
	if absent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing queueing disciplines: %w", err)
	}
	var lines []string
	for _, q := range all {
		if a := q.Attrs(); a.Handle != 0 {
			lines = append(lines, fmt.Sprintf("qdisc %s dev %s parent %s", q.Type(), name[a.LinkIndex], netlink.HandleStr(a.Parent)))
		}
	}
	return lines, nil
}

// namedLinks returns the namespace's links, and their names by index.
func namedLinks() ([]netlink.Link, map[int]string, error) {
	all, err := netlink.LinkList()
	if err != nil {
		return nil, nil, fmt.Errorf("listing links: %w", err)
	}
	name := make(map[int]string, len(all))
	for _, l := range all {
		name[l.Attrs().Index] = l.Attrs().Name
	}
	return all, name, nil
}

// linkNames returns the names of the namespace's links by index.
func linkNames() (map[int]string, error) {
	_, name, err := namedLinks()
	return name, err
}

func flag(flags, bit uint32, set, unset string) string {
	if flags&bit != 0 {
		return set
	}
	return unset
}

func orNone(s fmt.Stringer) string {
	if text := s.String(); text != "" {
		return text
	}
	return "none"
}
