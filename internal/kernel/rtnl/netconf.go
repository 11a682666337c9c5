package rtnl

import "golang.org/x/sys/unix"

// From include/uapi/linux/netconf.h.
const (
	sizeofNetconfmsg = 4 // struct netconfmsg, aligned

	netconfIfindex    = 1 // NETCONFA_IFINDEX
	netconfForwarding = 2 // NETCONFA_FORWARDING

	netconfAll = -1 // NETCONFA_IFINDEX_ALL: all links; -2 stands for the links that somebody will make
)

// readNetconf reads an RTM_NEWNETCONF, and reports whether the message says that forwarding is off.
func readNetconf(b []byte) (News, bool) {
	index, forwarding := int32(0), uint32(1)
	err := attributes(b, sizeofNetconfmsg, func(typ uint16, value []byte) {
		switch typ {
		case netconfIfindex:
			index = int32(uint32Of(value))
		case netconfForwarding:
			forwarding = uint32Of(value)
		}
	})
	if err != nil || forwarding != 0 || index < netconfAll || index == 0 {
		return News{}, false
	}
	n := News{Change: Unforwarded, IPv6: b[0] == unix.AF_INET6}
	if index != netconfAll {
		n.Link.Index = int(index)
	}
	return n, true
}
