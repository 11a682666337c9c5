package rtnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/stamp"
)

// Constants of include/uapi/linux (veth.h, if_link.h, rtnetlink.h) that x/sys/unix lacks.
const (
	vethInfoPeer   = 1
	addrGenNone    = 1      // IN6_ADDR_GEN_MODE_NONE
	skipStatistics = 1 << 3 // RTEXT_FILTER_SKIP_STATS
)

// End is one end of a veth pair.
type End struct {
	Name  string
	MAC   net.HardwareAddr // empty: a random address
	MTU   int              // bytes; 0: the kernel's default, 1,500
	Index int              // of the host's end; 0: the kernel chooses an index that no link has had yet
	// Master is the index of the bridge that the host's end is born as a port of; 0: none. The kernel first makes
	// the pair: if it cannot make the end a port, it deletes the pair again.
	Master int
}

// AddVeth makes a veth pair. The kernel creates the peer right in another network namespace, whose open
// file descriptor is netns, and the host's end right in a link group. If another link has one of the
// names or the index, the error is kernel.ErrExists, and the kernel makes nothing.
//
//	ip link add HOST [index N] address MAC mtu N group G [master DEV] numtxqueues 1 numrxqueues 1 type veth
//	    peer POD address MAC mtu N numtxqueues 1 numrxqueues 1 netns FD
func AddVeth(host End, group uint32, peer End, netns int) Request {
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(unix.IFLA_INFO_KIND, nl.NonZeroTerminated("veth"))
	other := info.AddRtAttr(unix.IFLA_INFO_DATA, nil).AddRtAttr(vethInfoPeer, nil)
	nl.NewIfInfomsgChild(other, unix.AF_UNSPEC)
	for _, a := range peer.attributes() {
		other.AddChild(a)
	}
	other.AddRtAttr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(netns)))

	at := nl.NewIfInfomsg(unix.AF_UNSPEC)
	at.Index = int32(host.Index)
	parts := append([]nl.NetlinkRequestData{at}, host.attributes()...)
	parts = append(parts, nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(group)), info)
	if host.Master != 0 {
		parts = append(parts, nl.NewRtAttr(unix.IFLA_MASTER, nl.Uint32Attr(uint32(host.Master))))
	}
	return Request{
		text:  "ip link add " + host.Name + " type veth peer " + peer.Name,
		typ:   unix.RTM_NEWLINK,
		flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL,
		body:  body(parts...),
	}
}

func (e End) attributes() []nl.NetlinkRequestData {
	as := []nl.NetlinkRequestData{
		nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(e.Name)),
		// A veth ends up with one queue anyway. Without these attributes the kernel first
		// shows in sysfs, and then hides again, a queue for each of the machine's processors.
		nl.NewRtAttr(unix.IFLA_NUM_TX_QUEUES, nl.Uint32Attr(1)),
		nl.NewRtAttr(unix.IFLA_NUM_RX_QUEUES, nl.Uint32Attr(1)),
	}
	if len(e.MAC) != 0 {
		as = append(as, nl.NewRtAttr(unix.IFLA_ADDRESS, e.MAC))
	}
	if e.MTU != 0 {
		as = append(as, nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(e.MTU))))
	}
	return as
}

// Setting is one thing that SetLink changes.
type Setting struct {
	text  string
	attr  *nl.RtAttr
	flags uint32 // the IFF_* flags to change
	set   uint32 // which of the flags to change become 1
}

// SetLink changes a link, found by its name. If there is no such link the error is
// kernel.ErrNotFound. In any order of settings, the kernel does Up and Down after all others except
// NoAddrGen, which it does last.
//
//	ip link set NAME ...
func SetLink(name string, settings ...Setting) Request {
	return setLink(nl.NewIfInfomsg(unix.AF_UNSPEC), name, settings, nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
}

func setLink(msg *nl.IfInfomsg, what string, settings []Setting, parts ...nl.NetlinkRequestData) Request {
	text := "ip link set " + what
	parts = append([]nl.NetlinkRequestData{msg}, parts...)
	for _, s := range settings {
		text += " " + s.text
		msg.Change |= s.flags
		msg.Flags |= s.set
		if s.attr != nil {
			parts = append(parts, s.attr)
		}
	}
	return Request{text: text, typ: unix.RTM_SETLINK, body: body(parts...)}
}

// Up is `up`.
func Up() Setting { return Setting{text: "up", flags: unix.IFF_UP, set: unix.IFF_UP} }

// Down is `down`. The kernel deletes the link's routes and neighbours.
func Down() Setting { return Setting{text: "down", flags: unix.IFF_UP} }

// Promisc is `promisc on`: a bridge, for one, then also receives frames for other MACs than its own. The kernel
// counts how often it is asked for, and takes this for one.
func Promisc() Setting {
	return Setting{text: "promisc on", flags: unix.IFF_PROMISC, set: unix.IFF_PROMISC}
}

// Group is `group N`.
func Group(n uint32) Setting {
	return Setting{text: fmt.Sprint("group ", n), attr: nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(n))}
}

// Alias is `alias TEXT`, of at most 255 bytes.
func Alias(text string) Setting {
	return Setting{text: "alias '" + text + "'", attr: nl.NewRtAttr(unix.IFLA_IFALIAS, nl.NonZeroTerminated(text))}
}

// MTU is `mtu N`.
func MTU(n int) Setting {
	return Setting{text: fmt.Sprint("mtu ", n), attr: nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(n)))}
}

// MAC is `address MAC`. The kernel deletes the link's neighbours.
func MAC(mac net.HardwareAddr) Setting {
	return Setting{text: "address " + mac.String(), attr: nl.NewRtAttr(unix.IFLA_ADDRESS, mac)}
}

// Master is `master DEV`: the link becomes a port of the bridge with an index.
func Master(index int) Setting {
	return Setting{text: fmt.Sprint("master ", index), attr: nl.NewRtAttr(unix.IFLA_MASTER, nl.Uint32Attr(uint32(index)))}
}

// NoMaster is `nomaster`.
func NoMaster() Setting {
	return Setting{text: "nomaster", attr: nl.NewRtAttr(unix.IFLA_MASTER, nl.Uint32Attr(0))}
}

// NoAddrGen is `addrgenmode none`: the kernel gives the link no link-local address by
// itself. If the link has no IPv6 the error is kernel.ErrUnsupported. AddVeth does not set addrgenmode,
// because the kernel would ignore it there.
func NoAddrGen() Setting {
	a := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
	a.AddRtAttr(unix.AF_INET6, nil).AddRtAttr(unix.IFLA_INET6_ADDR_GEN_MODE, nl.Uint8Attr(addrGenNone))
	return Setting{text: "addrgenmode none", attr: a}
}

// DelLink deletes a link, found by its name. If there is no such link the error is
// kernel.ErrNotFound. The caller waits about 20 ms for the deletion.
//
//	ip link del NAME
func DelLink(name string) Request {
	return Request{
		text: "ip link del " + name,
		typ:  unix.RTM_DELLINK,
		body: body(nl.NewIfInfomsg(unix.AF_UNSPEC), nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name))),
	}
}

// DelGroup deletes all links of a group, in about the time that the deletion of one link takes. If
// the group has no links the error is kernel.ErrNotFound. If the kernel cannot delete one of the links,
// it deletes none. The kernel walks all of the node's links for the deletion.
//
//	ip link del group N
func DelGroup(n uint32) Request {
	return Request{
		text: fmt.Sprint("ip link del group ", n),
		typ:  unix.RTM_DELLINK,
		body: body(nl.NewIfInfomsg(unix.AF_UNSPEC), nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(n))),
	}
}

// Link is a link as the kernel shows it.
type Link struct {
	Index  int
	Name   string
	Alias  string
	MAC    string
	MTU    int
	Group  uint32
	Up     bool // somebody has set the link up (IFF_UP), whether or not it has a carrier
	Peer   int  // a veth's other end: its index in that end's network namespace
	Master int  // the index of the bridge, or the like, that the link is a port of; 0: none
	Conf   Conf // some of its sysctls, as far as the kernel sent them

	Veth      bool
	PeerNetns int    // the NetnsID of the network namespace that Peer is in; NoNetns: it is this namespace
	Given     string // the name that ADD gave the link, as its second name says (stamp.AltName); "": it has no such second name
}

// EndsAt reports whether a veth's other end has an index in another network namespace, whose NetnsID is
// the parameter netns.
func (l Link) EndsAt(index, netns int) bool {
	return l.Veth && l.Peer == index && l.PeerNetns == netns && netns != NoNetns
}

// GetLink reads a link, found by its name, into link. If there is no such link the error
// is kernel.ErrNotFound. After GetLink the link can send if its peer is up, because the kernel brings
// the link's carrier up to date before it answers. Without GetLink the kernel does so a little later
// (net/core/link_watch.c).
//
//	ip link show NAME
func GetLink(name string, link *Link) Request {
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	return getLink(msg, name, link, nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
}

func getLink(msg *nl.IfInfomsg, what string, link *Link, parts ...nl.NetlinkRequestData) Request {
	parts = append([]nl.NetlinkRequestData{msg}, parts...)
	parts = append(parts, nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(skipStatistics)))
	return Request{
		text:   "ip link show " + what,
		typ:    unix.RTM_GETLINK,
		body:   body(parts...),
		answer: func(body []byte) (err error) { *link, err = parseLink(body); return err },
	}
}

// Link returns the link to which AddVeth gave a name. If somebody has renamed the link since, Link
// finds it by its AltName, provided that the link has one. Otherwise the error is kernel.ErrNotFound.
//
//	ip link show NAME || ip link show berth-NAME
func (c *Conn) Link(name string) (Link, error) {
	var l Link
	err := c.Do(GetLink(name, &l))
	if errors.Is(err, kernel.ErrNotFound) {
		err = c.Do(GetAltLink(stamp.AltName(name), &l))
	}
	return l, err
}

// Veths lists the veths for which keep answers true. It costs about 12 µs for each link of
// the node, and 40 µs on a node with 5,000 pods: for each link the kernel searches the ids of all
// network namespaces for the peer's namespace (see mirror in kinds/link). An error of
// keep ends the list, and Veths returns it.
//
//	ip link show type veth
func (c *Conn) Veths(keep func(Link) (bool, error)) ([]Link, error) {
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(unix.IFLA_INFO_KIND, nl.NonZeroTerminated("veth"))
	return c.links("ip link show type veth", keep, info)
}

// Links lists the links of any type for which keep answers true. It costs what Veths costs.
//
//	ip link show
func (c *Conn) Links(keep func(Link) (bool, error)) ([]Link, error) {
	return c.links("ip link show", keep)
}

func (c *Conn) links(text string, keep func(Link) (bool, error), parts ...nl.NetlinkRequestData) ([]Link, error) {
	parts = append([]nl.NetlinkRequestData{nl.NewIfInfomsg(unix.AF_UNSPEC)}, parts...)
	parts = append(parts, nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(skipStatistics)))
	return dump(c, Request{text: text, typ: unix.RTM_GETLINK, body: body(parts...)}, func(body []byte) (Link, bool, error) {
		l, err := parseLink(body)
		if err != nil {
			return l, false, err
		}
		ok, err := keep(l)
		return l, ok, err
	})
}

// parseLink reads an RTM_NEWLINK.
func parseLink(b []byte) (Link, error) {
	l := Link{PeerNetns: NoNetns}
	err := attributes(b, unix.SizeofIfInfomsg, func(typ uint16, value []byte) {
		switch typ {
		case unix.IFLA_IFNAME:
			l.Name = unix.ByteSliceToString(value)
		case unix.IFLA_IFALIAS:
			l.Alias = unix.ByteSliceToString(value)
		case unix.IFLA_ADDRESS:
			l.MAC = net.HardwareAddr(value).String()
		case unix.IFLA_MTU:
			l.MTU = int(uint32Of(value))
		case unix.IFLA_GROUP:
			l.Group = uint32Of(value)
		case unix.IFLA_LINK:
			l.Peer = int(uint32Of(value))
		case unix.IFLA_MASTER:
			l.Master = int(uint32Of(value))
		case unix.IFLA_LINK_NETNSID:
			l.PeerNetns = int(int32(uint32Of(value)))
		case unix.IFLA_LINKINFO:
			l.Veth = isVeth(value)
		case unix.IFLA_PROP_LIST:
			l.Given = given(value)
		case unix.IFLA_AF_SPEC:
			l.Conf = parseConf(value)
		}
	})
	if err != nil {
		return Link{}, err
	}
	l.Index = int(binary.NativeEndian.Uint32(b[4:]))
	l.Up = binary.NativeEndian.Uint32(b[8:])&unix.IFF_UP != 0
	return l, nil
}

// isVeth reads an IFLA_LINKINFO and reports whether the link is a veth.
func isVeth(info []byte) (veth bool) {
	_ = attributes(info, 0, func(typ uint16, value []byte) {
		veth = veth || typ == unix.IFLA_INFO_KIND && unix.ByteSliceToString(value) == "veth"
	})
	return veth
}

// given reads an IFLA_PROP_LIST, which has a link's further names. It returns the name that ADD gave
// the link, which follows from the first further name that is an AltName.
func given(list []byte) (name string) {
	_ = attributes(list, 0, func(typ uint16, value []byte) {
		if typ == unix.IFLA_ALT_IFNAME && name == "" {
			name, _ = stamp.OfAltName(unix.ByteSliceToString(value))
		}
	})
	return name
}
