package rtnl

import (
	"fmt"
	"net/netip"

	"github.com/berth-net/berth/internal/stamp"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Rule is a policy rule: packets from an address are routed by a table.
type Rule struct {
	From     netip.Addr
	Table    uint32
	Priority uint32 // the kernel applies the rule with the lowest first
	// Specific makes the rule ignore the table's default routes.
	Specific bool
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
	// struct fib_rule_hdr has the layout of struct rtmsg, with its action in place of type.
	msg := &nl.RtMsg{RtMsg: unix.RtMsg{
		Family:  uint8(family(r.From)),
		Src_len: uint8(r.From.BitLen()),
		Type:    actToTable,
	}}
	text := fmt.Sprintf("ip rule add from %s lookup %d pref %d", r.From, r.Table, r.Priority)
	parts := []nl.NetlinkRequestData{
		msg,
		nl.NewRtAttr(attrSrc, r.From.AsSlice()),
		nl.NewRtAttr(attrPriority, nl.Uint32Attr(r.Priority)),
		nl.NewRtAttr(attrTable, nl.Uint32Attr(r.Table)),
		nl.NewRtAttr(attrProtocol, []byte{stamp.Protocol}),
	}
	if r.Specific {
		text += " suppress_prefixlength 0"
		parts = append(parts, nl.NewRtAttr(attrSuppressPrefixLength, nl.Uint32Attr(0)))
	}
	return Request{
		text:  fmt.Sprint(text, " proto ", stamp.Protocol),
		typ:   unix.RTM_NEWRULE,
		flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL,
		body:  body(parts...),
	}
}
