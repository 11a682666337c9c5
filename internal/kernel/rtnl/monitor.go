package rtnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/nlsock"
	"github.com/berth-net/berth/internal/stamp"
)

// Change is what a piece of News is about.
type Change int

const (
	// LinkSet: a link of the instance that is live, or in no group of the instance any
	// more, has changed, or somebody has touched it. Link shows the link as it is now. If somebody has
	// set the link down, the change is LinkDown instead.
	LinkSet Change = iota
	// LinkDown: somebody has set such a link down; or a live link is new in this network namespace and
	// down, because somebody moved it here. The link's IPv6 addresses and all routes through it are
	// gone, and setting the link up does not bring them back.
	LinkDown
	// LinkGone: somebody has deleted a link of the instance. In Link, only Name and Index are set.
	LinkGone
	// RouteGone: somebody has deleted one of Berth's routes, or another route to its destination has
	// replaced it. The kernel does not tell of routes that disappear with their link.
	RouteGone
	// Unforwarded: somebody has switched off forwarding for a link, of the instance or not, or for
	// all links. In Link, only Index is set; it is 0 for all links.
	Unforwarded
	// Reshaped: somebody has taken away, replaced or changed what Shape made on a link, or
	// Shape has made it, or GetQdisc has asked for it. In Link, only Index is set; Shape is the rate
	// that the link has now.
	Reshaped
	// Repoliced: somebody has taken away, replaced or changed what Police made on a link, or Police has
	// made it. In Link, only Index is set; Shape is the rate that the link has now.
	Repoliced
	// Addressed: a link has got an address other than an IPv6 link-local one, or somebody has touched such an
	// address. Only Change is set.
	Addressed
	// Lost: the socket could not hold all news. Anything may have changed.
	Lost
)

// News is a change that a Monitor has seen.
type News struct {
	Change Change
	Link   Link
	Route  Route
	IPv6   bool // Unforwarded: of IPv6, not of IPv4
	Shape  Rate // Reshaped, Repoliced: the zero Rate, if it is not as Shape or Police makes it
}

// Monitor tells of changes to an instance's live links and its tunnel (stamp.Tunnel), to Berth's routes, shapes and
// police, and of addresses.
type Monitor struct {
	file   *os.File // the socket
	raw    syscall.RawConn
	groups stamp.Groups
	prefix string // with which the names of the instance's links begin
	buf    []byte
}

// receiveBuffer is how many bytes of news the kernel keeps until somebody reads them: enough for
// some thousand changes. Without privilege the kernel grants less.
const receiveBuffer = 4 << 20

// Monitor begins to listen in the Conn's network namespace, and tells of all that happens
// from now on. prefix is what the names of the instance's links begin with. The kernel
// drops news of other links and routes before Monitor sees them (see monitorFilter), so
// that others' changes cost next to nothing. The kernel also drops the news of a link if one message
// has taken the link out of the live group and has changed its name, its alias and its second name,
// because then nothing shows any more whose link it is.
//
//	ip monitor link route netconf address; tc monitor
func (c *Conn) Monitor(groups stamp.Groups, prefix string) (*Monitor, error) {
	m := &Monitor{groups: groups, prefix: prefix, buf: make([]byte, nlsock.BufferSize)}
	err := c.Inside(func() error { return m.open() })
	if err != nil {
		return nil, kernel.Classify(fmt.Errorf("listening to netlink: %w", err))
	}
	return m, nil
}

func (m *Monitor) open() error {
	program, err := monitorFilter(m.groups, m.prefix)
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	m.file = os.NewFile(uintptr(fd), "netlink monitor")
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer) // without privilege the kernel grants a smaller buffer
	}
	err = attach(fd, program)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	}
	for _, group := range []int{
		unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF,
		unix.RTNLGRP_TC, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
	} {
		if err == nil {
			err = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, group)
		}
	}
	if err == nil {
		m.raw, err = m.file.SyscallConn()
	}
	if err != nil {
		m.file.Close()
		return os.NewSyscallError("setsockopt", err)
	}
	return nil
}

// attach has the kernel drop what a filter does not accept.
func attach(fd int, program []bpf.RawInstruction) error {
	filter := make([]unix.SockFilter, len(program))
	for i, p := range program {
		filter[i] = unix.SockFilter{Code: p.Op, Jt: p.Jt, Jf: p.Jf, K: p.K}
	}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
}

// Close ends the monitor, and a Next that waits.
func (m *Monitor) Close() error { return m.file.Close() }

// Next waits for news and returns at least one. After Close its error is os.ErrClosed.
func (m *Monitor) Next() ([]News, error) {
	for {
		var n int
		var from unix.Sockaddr
		var failed error
		err := m.raw.Read(func(fd uintptr) bool {
			n, from, failed = unix.Recvfrom(int(fd), m.buf, unix.MSG_TRUNC)
			return failed != unix.EAGAIN && failed != unix.EINTR
		})
		switch {
		case err != nil: // the file is closed
			return nil, os.ErrClosed
		case errors.Is(failed, unix.ENOBUFS):
			if err := m.drop(); err != nil {
				return nil, err
			}
			return []News{{Change: Lost}}, nil
		case failed != nil:
			return nil, kernel.Classify(fmt.Errorf("listening to netlink: %w", os.NewSyscallError("recvfrom", failed)))
		}
		if sender, ok := from.(*unix.SockaddrNetlink); !ok || sender.Pid != 0 {
			continue // another process can write to our address; only port 0 is the kernel
		}
		if n > len(m.buf) {
			return []News{{Change: Lost}}, nil
		}
		msgs, err := syscall.ParseNetlinkMessage(m.buf[:n])
		if err != nil {
			return nil, fmt.Errorf("parsing netlink news: %w", err)
		}
		var news []News
		for _, msg := range msgs {
			if one, ours := m.read(msg); ours {
				news = append(news, one)
			}
		}
		if len(news) > 0 {
			return news, nil
		}
	}
}

// drop throws away the news that nobody has read yet. The kernel reports only once that there was no
// room, and drops further news until somebody has read everything. News from before the loss must not
// follow Lost.
func (m *Monitor) drop() error {
	var failed error
	err := m.raw.Control(func(fd uintptr) {
		for failed == nil || failed == unix.EINTR || failed == unix.ENOBUFS {
			_, _, failed = unix.Recvfrom(int(fd), m.buf[:1], unix.MSG_DONTWAIT|unix.MSG_TRUNC)
		}
	})
	switch {
	case err != nil: // the file is closed
		return os.ErrClosed
	case failed != unix.EAGAIN:
		return kernel.Classify(fmt.Errorf("listening to netlink: %w", os.NewSyscallError("recvfrom", failed)))
	}
	return nil
}

// read reads one message, and reports whether the message is news that Next has to tell.
func (m *Monitor) read(msg syscall.NetlinkMessage) (News, bool) {
	switch msg.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		link, err := parseLink(msg.Data)
		if err != nil || msg.Data[0] != unix.AF_UNSPEC { // AF_BRIDGE: a bridge tells of its ports
			return News{}, false
		}
		if msg.Header.Type == unix.RTM_DELLINK {
			return News{Change: LinkGone, Link: link}, true
		}
		own := m.groups.Has(link.Group)
		if own && link.Group != m.groups.Live() { // coming, or dying
			return News{}, false
		}
		changed := binary.NativeEndian.Uint32(msg.Data[12:])
		isNew := changed == 1<<32-1
		if changed&unix.IFF_UP != 0 && !link.Up && (own || !isNew) {
			return News{Change: LinkDown, Link: link}, true
		}
		return News{Change: LinkSet, Link: link}, true
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		route, _, err := parseRoute(msg.Data)
		if err != nil || nl.DeserializeRtMsg(msg.Data).Table != unix.RT_TABLE_MAIN {
			return News{}, false
		}
		return News{Change: RouteGone, Route: route}, true
	case unix.RTM_NEWNETCONF:
		return readNetconf(msg.Data)
	case unix.RTM_NEWADDR:
		return News{Change: Addressed}, true
	case unix.RTM_NEWQDISC, unix.RTM_DELQDISC:
		q, isRoot, err := parseQdisc(msg.Data)
		if err == nil && q.Kind == clsact && msg.Header.Type == unix.RTM_DELQDISC {
			return News{Change: Repoliced, Link: Link{Index: q.Index}}, true
		}
		if err != nil || !isRoot {
			return News{}, false
		}
		if msg.Header.Type == unix.RTM_DELQDISC {
			q.Shape = Rate{}
		}
		return News{Change: Reshaped, Link: Link{Index: q.Index}, Shape: q.Shape}, true
	case unix.RTM_NEWTFILTER, unix.RTM_DELTFILTER:
		index, rate, err := parsePolice(msg.Data)
		if err != nil {
			return News{}, false
		}
		if msg.Header.Type == unix.RTM_DELTFILTER {
			rate = Rate{}
		}
		return News{Change: Repoliced, Link: Link{Index: index}, Shape: rate}, true
	}
	return News{}, false
}
