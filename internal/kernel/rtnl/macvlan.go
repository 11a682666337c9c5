package rtnl

import (
	"fmt"
	"net"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// MacvlanMode says which frames the macvlans of one parent pass to each other (ip-link(8)). 0: the link is
// no macvlan.
type MacvlanMode uint32

// The modes. In MacvlanPassthru the parent has one macvlan only, and the macvlan has the parent's MAC: a
// change of either MAC changes the other.
const (
	MacvlanPrivate  MacvlanMode = nl.MACVLAN_MODE_PRIVATE
	MacvlanVEPA     MacvlanMode = nl.MACVLAN_MODE_VEPA
	MacvlanBridge   MacvlanMode = nl.MACVLAN_MODE_BRIDGE
	MacvlanPassthru MacvlanMode = nl.MACVLAN_MODE_PASSTHRU
)

var macvlanModes = map[MacvlanMode]string{
	MacvlanPrivate: "private", MacvlanVEPA: "vepa", MacvlanBridge: "bridge", MacvlanPassthru: "passthru",
}

// String returns the mode in ip's words.
func (m MacvlanMode) String() string {
	if name, ok := macvlanModes[m]; ok {
		return name
	}
	return fmt.Sprintf("%d", uint32(m))
}

// ParseMacvlanMode returns the mode that ip calls by a name; false if the name is no mode's.
func ParseMacvlanMode(name string) (MacvlanMode, bool) {
	for m, n := range macvlanModes {
		if n == name {
			return m, true
		}
	}
	return 0, false
}

// NewMacvlan is what AddMacvlan makes.
type NewMacvlan struct {
	Name   string
	MAC    net.HardwareAddr // empty: a random address, or the parent's in MacvlanPassthru, where the kernel ignores MAC
	MTU    int              // bytes, at most the parent's MTU; 0: the parent's MTU
	Parent int              // the index of the parent, in the Conn's network namespace
	Mode   MacvlanMode
}

// AddMacvlan makes a macvlan right in another network namespace, whose open file descriptor is netns, and
// right in a link group. The macvlan is down. The kernel ignores an alias in this request. If the parent is
// a macvlan itself, the kernel takes the parent's own parent.
//
// If a link there has the name, the error is kernel.ErrExists. If there is no such parent, it is
// kernel.ErrNotFound; if the parent is a port of a bridge, kernel.ErrBusy. It is kernel.ErrInvalid for a
// parent that cannot have macvlans (lo), for an MTU above the parent's, and if either this macvlan or one
// that the parent has is in MacvlanPassthru. Two macvlans of a parent may have the same MAC, but to set the
// second one up is kernel.ErrBusy.
//
//	ip link add link PARENT name NAME address MAC mtu N group G netns FD type macvlan mode MODE
func AddMacvlan(m NewMacvlan, group uint32, netns int) Request {
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(unix.IFLA_INFO_KIND, nl.NonZeroTerminated("macvlan"))
	info.AddRtAttr(unix.IFLA_INFO_DATA, nil).AddRtAttr(nl.IFLA_MACVLAN_MODE, nl.Uint32Attr(uint32(m.Mode)))
	parts := []nl.NetlinkRequestData{
		nl.NewIfInfomsg(unix.AF_UNSPEC),
		nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(m.Name)),
		nl.NewRtAttr(unix.IFLA_LINK, nl.Uint32Attr(uint32(m.Parent))),
		nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(group)),
		nl.NewRtAttr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(netns))),
	}
	if len(m.MAC) != 0 {
		parts = append(parts, nl.NewRtAttr(unix.IFLA_ADDRESS, m.MAC))
	}
	if m.MTU != 0 {
		parts = append(parts, nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(m.MTU))))
	}
	return Request{
		text:  fmt.Sprintf("ip link add link %d name %s type macvlan mode %s", m.Parent, m.Name, m.Mode),
		typ:   unix.RTM_NEWLINK,
		flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL,
		body:  body(append(parts, info)...),
	}
}

// SetMacvlanMode changes the mode of a macvlan, found by its index. The mode cannot become MacvlanPassthru,
// nor can it change from that: the error is kernel.ErrInvalid.
//
//	ip link set DEV type macvlan mode MODE
func SetMacvlanMode(index int, mode MacvlanMode) Request {
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(unix.IFLA_INFO_KIND, nl.NonZeroTerminated("macvlan"))
	info.AddRtAttr(unix.IFLA_INFO_DATA, nil).AddRtAttr(nl.IFLA_MACVLAN_MODE, nl.Uint32Attr(uint32(mode)))
	return Request{
		text: fmt.Sprintf("ip link set %d type macvlan mode %s", index, mode),
		typ:  unix.RTM_NEWLINK, // RTM_SETLINK ignores what is in IFLA_INFO_DATA
		body: body(at(index), info),
	}
}

// FlushSources takes away the list of MACs that a macvlan, found by its index, hears in the mode source. Each MAC
// makes the message about the macvlan longer, and nothing bounds the list. If the link is no macvlan the error is
// kernel.ErrUnsupported; if its mode is another, kernel.ErrInvalid.
//
//	ip link set DEV type macvlan macaddr flush
func FlushSources(index int) Request {
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(unix.IFLA_INFO_KIND, nl.NonZeroTerminated("macvlan"))
	info.AddRtAttr(unix.IFLA_INFO_DATA, nil).AddRtAttr(nl.IFLA_MACVLAN_MACADDR_MODE, nl.Uint32Attr(nl.MACVLAN_MACADDR_FLUSH))
	return Request{
		text: fmt.Sprintf("ip link set %d type macvlan macaddr flush", index),
		typ:  unix.RTM_NEWLINK,
		body: body(at(index), info),
	}
}

// Macvlan is a macvlan as the kernel shows it. Peer is its parent's index, in the network namespace that has
// the NetnsID PeerNetns.
type Macvlan struct {
	Link
	Mode MacvlanMode // 0: the link is no macvlan
}

// GetMacvlan is GetLink for a link that may be a macvlan.
//
//	ip -d link show NAME
func GetMacvlan(name string, m *Macvlan) Request { return m.reads(GetLink(name, new(Link))) }

// GetMacvlanAt is GetMacvlan for a link that is found by its index, whatever its name is.
//
//	ip -d link show DEV
func GetMacvlanAt(index int, m *Macvlan) Request { return m.reads(GetLinkAt(index, new(Link))) }

// reads makes the answer to a request go into m.
func (m *Macvlan) reads(r Request) Request {
	r.answer = func(b []byte) (err error) { *m, err = parseMacvlan(b); return err }
	return r
}

// EachMacvlan calls each for the macvlans of the Conn's network namespace. If links change meanwhile,
// EachMacvlan may call each twice for a macvlan. An error of each ends the list, and EachMacvlan returns the
// error; for ErrStop it returns nil.
//
//	ip -d link show type macvlan
func (c *Conn) EachMacvlan(each func(Macvlan) error) error {
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(unix.IFLA_INFO_KIND, nl.NonZeroTerminated("macvlan"))
	r := Request{
		text: "ip -d link show type macvlan",
		typ:  unix.RTM_GETLINK,
		body: body(nl.NewIfInfomsg(unix.AF_UNSPEC), nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(skipStatistics)), info),
	}
	return c.walk(r, func() {}, func(b []byte) error {
		m, err := parseMacvlan(b)
		if err != nil || m.Mode == 0 { // a kernel that has not loaded the module lists all links
			return err
		}
		return each(m)
	})
}

// parseMacvlan reads an RTM_NEWLINK.
func parseMacvlan(b []byte) (m Macvlan, err error) {
	if m.Link, err = parseLink(b); err != nil {
		return m, err
	}
	info := within(b[unix.SizeofIfInfomsg:], unix.IFLA_LINKINFO)
	if unix.ByteSliceToString(within(info, unix.IFLA_INFO_KIND)) == "macvlan" {
		m.Mode = MacvlanMode(uint32Of(within(within(info, unix.IFLA_INFO_DATA), nl.IFLA_MACVLAN_MODE)))
	}
	return m, nil
}
