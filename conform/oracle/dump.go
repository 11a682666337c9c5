package oracle

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// dump returns the attributes of each thing that a dump lists, behind a header of some bytes, and the header. request is the message's body.
func dump(protocol, kind int, request []byte, header int) (all []dumped, err error) {
	req := nl.NewNetlinkRequest(kind, unix.NLM_F_DUMP)
	req.AddRawData(request)
	messages, err := req.Execute(protocol, 0)
	if absent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, m := range messages {
		if len(m) < header {
			continue
		}
		attrs, err := attributes(m[header:])
		if err != nil {
			return nil, err
		}
		all = append(all, dumped{m[:header], attrs})
	}
	return all, nil
}

type dumped struct {
	header []byte
	attrs  map[uint16][]byte
}

func attributes(raw []byte) (map[uint16][]byte, error) {
	list, err := nl.ParseRouteAttr(raw)
	attrs := map[uint16][]byte{}
	for _, a := range list {
		attrs[a.Attr.Type&nl.NLA_TYPE_MASK] = a.Value
	}
	return attrs, err
}

// number reads an attribute that is an integer in the machine's order, or 0 if there is none.
func number(raw []byte) (n uint64) {
	for i, b := range raw {
		shift := 8 * i
		if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
			shift = 8 * (len(raw) - 1 - i)
		}
		n |= uint64(b) << shift
	}
	return n
}

// addressOr reads an attribute that is an address, or returns otherwise.
func addressOr(raw []byte, otherwise string) string {
	if a, ok := netip.AddrFromSlice(raw); ok {
		return a.String()
	}
	return otherwise
}

// nexthops is `ip nexthop`. The attributes are NHA_* of linux/nexthop.h.
func nexthops() ([]string, error) {
	name, err := linkNames()
	if err != nil {
		return nil, err
	}
	all, err := dump(unix.NETLINK_ROUTE, unix.RTM_GETNEXTHOP, make([]byte, unix.SizeofNhmsg), unix.SizeofNhmsg)
	if err != nil {
		return nil, fmt.Errorf("listing nexthops: %w", err)
	}
	var lines []string
	for _, d := range all {
		line := fmt.Sprintf("nexthop %d via %s", number(d.attrs[unix.NHA_ID]), addressOr(d.attrs[unix.NHA_GATEWAY], "none"))
		if index := number(d.attrs[unix.NHA_OIF]); index != 0 {
			line += " dev " + name[int(index)]
		}
		if _, ok := d.attrs[unix.NHA_BLACKHOLE]; ok {
			line += " blackhole"
		}
		if group := d.attrs[unix.NHA_GROUP]; group != nil {
			line += fmt.Sprintf(" group %x", group)
		}
		lines = append(lines, line)
	}
	return lines, nil
}

// The header and the attributes of address labels (linux/if_addrlabel.h).
const (
	sizeofAddrLabel = 12 // family, reserved, prefix length, flags: a byte each; index, sequence: 4 bytes each
	labelAddress    = 1
	labelValue      = 2
)

// addressLabels is `ip addrlabel`.
func addressLabels() ([]string, error) {
	request := make([]byte, sizeofAddrLabel)
	request[0] = unix.AF_INET6
	all, err := dump(unix.NETLINK_ROUTE, unix.RTM_GETADDRLABEL, request, sizeofAddrLabel)
	if err != nil {
		return nil, fmt.Errorf("listing address labels: %w", err)
	}
	var lines []string
	for _, d := range all {
		lines = append(lines, fmt.Sprintf("addrlabel %s/%d label %d", addressOr(d.attrs[labelAddress], "::"), d.header[2], number(d.attrs[labelValue])))
	}
	return lines, nil
}

// The command and the attributes of MPTCP's path manager (linux/mptcp_pm.h).
const (
	mptcpGetAddr = 3
	mptcpAddr    = 1
	mptcpID      = 2
	mptcpAddr4   = 3
	mptcpAddr6   = 4
	mptcpFlags   = 6
)

// mptcpEndpoints is `ip mptcp endpoint`.
func mptcpEndpoints() ([]string, error) {
	family, err := netlink.GenlFamilyGet("mptcp_pm")
	if err != nil { // the kernel lacks MPTCP
		return nil, nil
	}
	all, err := dump(unix.NETLINK_GENERIC, int(family.ID), []byte{mptcpGetAddr, 1, 0, 0}, 4)
	if err != nil {
		return nil, fmt.Errorf("listing MPTCP endpoints: %w", err)
	}
	var lines []string
	for _, d := range all {
		a, err := attributes(d.attrs[mptcpAddr])
		if err != nil {
			return nil, fmt.Errorf("listing MPTCP endpoints: %w", err)
		}
		lines = append(lines, fmt.Sprintf("mptcp %s id %d flags %#x", addressOr(a[mptcpAddr4], addressOr(a[mptcpAddr6], "none")), number(a[mptcpID]), number(a[mptcpFlags])))
	}
	return lines, nil
}

// xfrm is `ip xfrm state` and `ip xfrm policy`, without keys, counters and timers.
func xfrm() ([]string, error) {
	states, err := netlink.XfrmStateList(netlink.FAMILY_ALL)
	if absent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing XFRM states: %w", err)
	}
	var lines []string
	for _, s := range states {
		lines = append(lines, fmt.Sprintf("xfrm state %s to %s proto %s spi %#x reqid %d if_id %d", s.Src, s.Dst, s.Proto, s.Spi, s.Reqid, s.Ifid))
	}
	policies, err := netlink.XfrmPolicyList(netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("listing XFRM policies: %w", err)
	}
	everything := &net.IPNet{}
	for _, p := range policies {
		src, dst := p.Src, p.Dst
		if src == nil {
			src = everything
		}
		if dst == nil {
			dst = everything
		}
		lines = append(lines, fmt.Sprintf("xfrm policy %s to %s dir %s priority %d if_id %d", src, dst, p.Dir, p.Priority, p.Ifid))
	}
	return lines, nil
}
