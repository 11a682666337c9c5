package killer

import (
	"cmp"
	"encoding/binary"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// rtnetlink are the requests of rtnetlink that change something (linux/rtnetlink.h).
var rtnetlink = map[uint16]string{
	unix.RTM_NEWLINK: "RTM_NEWLINK", unix.RTM_DELLINK: "RTM_DELLINK", unix.RTM_SETLINK: "RTM_SETLINK",
	unix.RTM_NEWADDR: "RTM_NEWADDR", unix.RTM_DELADDR: "RTM_DELADDR",
	unix.RTM_NEWROUTE: "RTM_NEWROUTE", unix.RTM_DELROUTE: "RTM_DELROUTE",
	unix.RTM_NEWNEIGH: "RTM_NEWNEIGH", unix.RTM_DELNEIGH: "RTM_DELNEIGH",
	unix.RTM_NEWRULE: "RTM_NEWRULE", unix.RTM_DELRULE: "RTM_DELRULE",
	unix.RTM_NEWNSID:  "RTM_NEWNSID",
	unix.RTM_NEWQDISC: "RTM_NEWQDISC", unix.RTM_DELQDISC: "RTM_DELQDISC",
	unix.RTM_NEWTFILTER: "RTM_NEWTFILTER", unix.RTM_DELTFILTER: "RTM_DELTFILTER",
}

// conntrack are the requests of ctnetlink that change something
// (linux/netfilter/nfnetlink_conntrack.h).
var conntrack = map[uint16]string{
	unix.NFNL_SUBSYS_CTNETLINK << 8:   "conntrack new",
	unix.NFNL_SUBSYS_CTNETLINK<<8 | 2: "conntrack delete",
}

// batchBegin and batchEnd are NFNL_MSG_BATCH_BEGIN and NFNL_MSG_BATCH_END, with which every
// transaction of nftables begins and ends (linux/netfilter/nfnetlink.h). rtnetlink's RTM_NEWLINK
// and RTM_DELLINK have the same numbers, and longer messages.
const (
	batchBegin = 0x10
	batchEnd   = 0x11
	batchEdge  = unix.SizeofNlMsghdr + 4 // the bytes of either message: a header and a struct nfgenmsg
)

// listSockets is SOCK_DIAG_BY_FAMILY (linux/sock_diag.h), which has the number of
// RTM_NEWADDR. SOCK_DESTROY has the number of RTM_DELADDR.
const listSockets = 20

// sent returns a call that sends body through a socket; nil for netlink requests that
// change nothing.
func (t *tracer) sent(c *Call, fd int, body []byte, family int) (*Call, error) {
	types, netlink := messages(body)
	if family != unix.AF_NETLINK && !netlink {
		c.What = t.file(fd)
		return c, nil
	}
	if emptyBatch(body) {
		return nil, nil
	}
	c.Netlink = true
	if len(types) > 1 && types[0] == batchBegin && types[1]>>8 == unix.NFNL_SUBSYS_NFTABLES {
		c.What = "nft batch"
		return c, nil
	}
	var what []string
	for _, typ := range types {
		name := cmp.Or(rtnetlink[typ], conntrack[typ])
		if name != "" && !slices.Contains(what, name) {
			what = append(what, name)
		}
	}
	if len(what) == 0 {
		return nil, nil
	}
	c.What = strings.Join(what, "+")
	return c, nil
}

// emptyBatch reports whether b is a transaction of nftables that changes nothing. The agent sends such
// a transaction before it reads, to wait for the transaction under way (internal/kernel/nft/read.go,
// atOnce).
func emptyBatch(b []byte) bool {
	typ := func(at int) uint16 { return binary.NativeEndian.Uint16(b[at+4:]) }
	return len(b) == 2*batchEdge && typ(0) == batchBegin && typ(batchEdge) == batchEnd
}

// messages returns the types of the netlink messages in b, and whether b looks as if it had
// nothing else.
func messages(b []byte) (types []uint16, ok bool) {
	for len(b) >= unix.SizeofNlMsghdr {
		n := int(binary.NativeEndian.Uint32(b))
		if n < unix.SizeofNlMsghdr || n > len(b) {
			return types, false
		}
		typ, flags := binary.NativeEndian.Uint16(b[4:]), binary.NativeEndian.Uint16(b[6:])
		if typ == listSockets && flags&unix.NLM_F_DUMP == unix.NLM_F_DUMP {
			typ = 0 // the message only asks
		}
		types = append(types, typ)
		b = b[min((n+3)&^3, len(b)):]
	}
	return types, len(types) > 0 && len(b) == 0
}

// answer returns a call that fetches an answer from a netlink socket; nil for other
// sockets.
func (t *tracer) answer(name string, a [6]uint64) (*Call, error) {
	if !t.netlinkSocket(int(a[0])) {
		return nil, nil
	}
	return &Call{Name: name, What: "netlink", Netlink: true, Answer: true}, nil
}

// netlinkSocket reports whether a descriptor of the program is a netlink socket. netlinkSocket
// looks at a copy of the descriptor, which pidfd_getfd(2) gives.
func (t *tracer) netlinkSocket(fd int) bool {
	pid, err := unix.PidfdOpen(t.Pid, 0)
	if err != nil {
		return false
	}
	defer unix.Close(pid)
	lent, err := unix.PidfdGetfd(pid, fd, 0)
	if err != nil {
		return false
	}
	defer unix.Close(lent)
	domain, err := unix.GetsockoptInt(lent, unix.SOL_SOCKET, unix.SO_DOMAIN)
	return err == nil && domain == unix.AF_NETLINK
}
