package rtnl

import (
	"fmt"
	"net/netip"

	"github.com/berth-net/berth/internal/stamp"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Rule is a policy rule: the kernel routes packets from an address by a table.
type Rule struct {
	From     netip.Addr
	Table    uint32
	Priority uint32 // the kernel applies the rule with the lowest first
	// Specific makes the rule ignore the table's default routes.
	Specific bool
}

// String returns the rule as ip's arguments.
func (r Rule) String() string {
	text := fmt.Sprintf("from %s lookup %d pref %d", r.From, r.Table, r.Priority)
	if r.Specific {
		text += " suppress_prefixlength 0"
	}
	return text + fmt.Sprint(" proto ", stamp.Protocol)
}

// From include/uapi/linux/fib_rules.h.
const (
	actToTable = 1 // FR_ACT_TO_TBL

	attrSrc                  = 2  // FRA_SRC
	attrPriority             = 6  // FRA_PRIORITY
	attrSuppressPrefixLength = 14 // FRA_SUPPRESS_PREFIXLEN
	attrTable                = 15 // FRA_TABLE
	attrProtocol             = 21 // FRA_PROTOCOL
)

// AddRule adds a rule. If the same rule exists the error is kernel.ErrExists.
//
//	ip rule add from ADDR lookup TABLE pref PRIORITY [suppress_prefixlength 0] proto 98
func AddRule(r Rule) Request {
	return Request{
		text:  "ip rule add " + r.String(),
		typ:   unix.RTM_NEWRULE,
		flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL,
		body:  r.body(),
	}
}

// DelRule deletes a rule. If there is no such rule the error is kernel.ErrNotFound.
//
//	ip rule del from ADDR lookup TABLE pref PRIORITY [suppress_prefixlength 0] proto 98
func DelRule(r Rule) Request {
	return Request{text: "ip rule del " + r.String(), typ: unix.RTM_DELRULE, body: r.body()}
}

func (r Rule) body() []byte {
	// struct fib_rule_hdr has the layout of struct rtmsg, with its action in place of type.
	msg := &nl.RtMsg{RtMsg: unix.RtMsg{
		Family:  uint8(family(r.From)),
		Src_len: uint8(r.From.BitLen()),
		Type:    actToTable,
	}}
	parts := []nl.NetlinkRequestData{
		msg,
		nl.NewRtAttr(attrSrc, r.From.AsSlice()),
		nl.NewRtAttr(attrPriority, nl.Uint32Attr(r.Priority)),
		nl.NewRtAttr(attrTable, nl.Uint32Attr(r.Table)),
		nl.NewRtAttr(attrProtocol, []byte{stamp.Protocol}),
	}
	if r.Specific {
		parts = append(parts, nl.NewRtAttr(attrSuppressPrefixLength, nl.Uint32Attr(0)))
	}
	return body(parts...)
}

// EachRule calls each for all policy rules of a family, IPv6 or else IPv4; ours says whether a rule is
// Berth's. If the rules change meanwhile, EachRule may call each twice for a rule. An error of each
// ends the list, and EachRule returns the error; for ErrStop it returns nil.
//
//	ip -4|-6 rule show proto 98
func (c *Conn) EachRule(ipv6 bool, each func(r Rule, ours bool) error) error {
	msg := &nl.RtMsg{RtMsg: unix.RtMsg{Family: unix.AF_INET}}
	if ipv6 {
		msg.Family = unix.AF_INET6
	}
	request := Request{text: fmt.Sprint("ip rule show proto ", stamp.Protocol), typ: unix.RTM_GETRULE, body: body(msg)}
	return c.walk(request, func() {}, func(b []byte) error {
		r, ours, err := parseRule(b)
		if err != nil {
			return err
		}
		return each(r, ours)
	})
}

// parseRule reads an RTM_NEWRULE, and reports whether the rule is one of Berth's.
func parseRule(b []byte) (r Rule, ours bool, err error) {
	err = attributes(b, unix.SizeofRtMsg, func(typ uint16, value []byte) {
		switch typ {
		case attrSrc:
			r.From, _ = netip.AddrFromSlice(value)
		case attrPriority:
			r.Priority = uint32Of(value)
		case attrTable:
			r.Table = uint32Of(value)
		case attrSuppressPrefixLength: // -1: the rule ignores nothing
			r.Specific = uint32Of(value) == 0
		case attrProtocol:
			ours = len(value) == 1 && value[0] == stamp.Protocol
		}
	})
	if err != nil {
		return Rule{}, false, err
	}
	m := nl.DeserializeRtMsg(b)
	return r, ours && r.From.IsValid() && int(m.Src_len) == r.From.BitLen() && m.Type == actToTable, nil
}
