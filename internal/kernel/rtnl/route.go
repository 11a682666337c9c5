package rtnl

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/stamp"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Route is a route with Berth's protocol number. It is in the main table unless Table says
// otherwise; only EachRoute reads routes of other tables.
type Route struct {
	Dst         netip.Prefix
	Unreachable bool       // the kernel answers with an ICMP error; the route has neither link nor gateway
	Local       bool       // the node receives the packets itself; the route has neither link nor gateway
	Index       int        // of the link that the route leads to; 0: of the link on which the kernel finds the gateway
	Gateway     netip.Addr // zero: the destination is on the link
	Metric      uint32     // the route with the lowest metric wins; 0 is the family's default (IPv6: 1,024)
	Table       uint32     // 0: main
}

// String returns the route as ip's arguments.
func (r Route) String() string {
	text := r.Dst.String()
	if r.Unreachable {
		text = "unreachable " + text
	}
	if r.Local {
		text = "local " + text + " dev lo"
	}
	if r.Gateway.IsValid() {
		text += fmt.Sprint(" via ", r.Gateway)
	}
	if r.Index != 0 && !r.Unreachable && !r.Local {
		text += fmt.Sprint(" dev ", r.Index)
	}
	if r.onlink() {
		text += " onlink"
	}
	if r.Metric != 0 {
		text += fmt.Sprint(" metric ", r.Metric)
	}
	if r.Table != 0 {
		text += fmt.Sprint(" table ", r.Table)
	}
	return text + fmt.Sprint(" proto ", stamp.Protocol)
}

// onlink reports whether the kernel takes the gateway to be on the link, whatever the link's addresses are.
func (r Route) onlink() bool { return r.Gateway.IsValid() && r.Index != 0 }

// AddRoute adds a route. If there is a route to the same destination with the same metric,
// wherever it leads, the error is kernel.ErrExists and that route stays. The link must be
// up. A route with a gateway and without a link takes the link to whose network the gateway belongs; if
// there is no such link the error is kernel.ErrUnreachable. If a route has both, the kernel takes the gateway
// to be on the link, whatever the link's addresses are (onlink).
//
//	ip route add ...
func AddRoute(r Route) Request {
	return Request{
		text:  "ip route add " + r.String(),
		typ:   unix.RTM_NEWROUTE,
		flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL,
		body:  r.body(r.scope()),
	}
}

// ReplaceRoute is AddRoute, but a route to the same destination with the same metric gives way to r, with no
// moment between the two.
//
//	ip route replace ...
func ReplaceRoute(r Route) Request {
	return Request{
		text:  "ip route replace " + r.String(),
		typ:   unix.RTM_NEWROUTE,
		flags: unix.NLM_F_CREATE | unix.NLM_F_REPLACE,
		body:  r.body(r.scope()),
	}
}

// DelRoute deletes the route with r's destination, with Berth's protocol number, and with
// r's link, metric and gateway (each 0: any). If there is no such route the error is kernel.ErrNotFound.
//
//	ip route del ...
func DelRoute(r Route) Request {
	return Request{
		text: "ip route del " + r.String(),
		typ:  unix.RTM_DELROUTE,
		body: r.body(unix.RT_SCOPE_NOWHERE), // any scope
	}
}

// DelRoutes deletes routes as DelRoute does, in as few system calls as possible, and returns an answer for each. A route that is not
// there is nil, and so is a zero Route, which names none.
func (c *Conn) DelRoutes(routes []Route) []error {
	var rs []Request
	var of []int
	for i, r := range routes {
		if r.Dst.IsValid() {
			rs, of = append(rs, DelRoute(r)), append(of, i)
		}
	}
	errs := make([]error, len(routes))
	for n, err := range c.Each(rs...) {
		if !errors.Is(err, kernel.ErrNotFound) {
			errs[of[n]] = err
		}
	}
	return errs
}

// loopback is the index of lo in every network namespace (LOOPBACK_IFINDEX).
const loopback = 1

// scope returns the scope that `ip route add` chooses for such a route.
func (r Route) scope() uint8 {
	if r.Local {
		return unix.RT_SCOPE_HOST
	}
	if r.Dst.Addr().Is4() && !r.Unreachable && !r.Gateway.IsValid() {
		return unix.RT_SCOPE_LINK
	}
	return unix.RT_SCOPE_UNIVERSE
}

func (r Route) body(scope uint8) []byte {
	msg := nl.NewRtMsg()
	msg.Family = uint8(family(r.Dst.Addr()))
	msg.Dst_len = uint8(r.Dst.Bits())
	msg.Protocol = stamp.Protocol
	msg.Scope = scope
	if r.Unreachable {
		msg.Type = unix.RTN_UNREACHABLE
	}
	if r.Local {
		msg.Type = unix.RTN_LOCAL
		r.Index = loopback
	}
	parts := []nl.NetlinkRequestData{msg, nl.NewRtAttr(unix.RTA_DST, r.Dst.Addr().AsSlice())}
	if r.Gateway.IsValid() {
		if r.onlink() {
			msg.Flags |= unix.RTNH_F_ONLINK
		}
		parts = append(parts, nl.NewRtAttr(unix.RTA_GATEWAY, r.Gateway.AsSlice()))
	}
	if r.Index != 0 {
		parts = append(parts, nl.NewRtAttr(unix.RTA_OIF, nl.Uint32Attr(uint32(r.Index))))
	}
	if r.Metric != 0 {
		parts = append(parts, nl.NewRtAttr(unix.RTA_PRIORITY, nl.Uint32Attr(r.Metric)))
	}
	if r.Table != 0 {
		msg.Table = unix.RT_TABLE_UNSPEC
		parts = append(parts, nl.NewRtAttr(unix.RTA_TABLE, nl.Uint32Attr(r.Table)))
	}
	return body(parts...)
}

// MatchRoute reads into route the route that a packet to addr would take. If that is no route of
// Berth's in the main table, route stays as it is. The kernel looks the route up, in constant time, and
// applies policy rules. If there is no route, or an unreachable one, the error is
// kernel.ErrUnreachable.
//
//	ip route get fibmatch ADDR
func MatchRoute(addr netip.Addr, route *Route) Request { return MatchRouteBy(addr, 0, route) }

// MatchRouteBy is MatchRoute among the routes that lead to the link with an index; 0: to
// any link.
//
//	ip route get fibmatch ADDR oif DEV
func MatchRouteBy(addr netip.Addr, index int, route *Route) Request {
	msg := &nl.RtMsg{RtMsg: unix.RtMsg{
		Family:  uint8(family(addr)),
		Dst_len: uint8(addr.BitLen()),
		Flags:   unix.RTM_F_FIB_MATCH,
	}}
	text := fmt.Sprint("ip route get fibmatch ", addr)
	parts := []nl.NetlinkRequestData{msg, nl.NewRtAttr(unix.RTA_DST, addr.AsSlice())}
	if index != 0 {
		text += fmt.Sprint(" oif ", index)
		parts = append(parts, nl.NewRtAttr(unix.RTA_OIF, nl.Uint32Attr(uint32(index))))
	}
	return Request{
		text: text,
		typ:  unix.RTM_GETROUTE,
		body: body(parts...),
		answer: func(b []byte) error {
			seen, ours, err := parseRoute(b)
			if ours && seen.Table == 0 {
				*route = seen
			}
			return err
		},
	}
}

// IsLocal asks whether the network namespace itself receives packets to addr. The kernel adds an IPv6
// address's local route some time after the address (addrconf_dad_work), even without duplicate address
// detection.
//
//	ip route get fibmatch ADDR
func IsLocal(addr netip.Addr, local *bool) Request {
	r := MatchRoute(addr, nil)
	r.answer = func(b []byte) error {
		if len(b) < unix.SizeofRtMsg {
			return fmt.Errorf("netlink message of %d bytes, less than %d", len(b), unix.SizeofRtMsg)
		}
		*local = nl.DeserializeRtMsg(b).Type == unix.RTN_LOCAL
		return nil
	}
	return r
}

// Reached returns the addresses among addrs that the node itself has, or to which packets of the node have a way by a
// route to the address alone. An unreachable route is no way. Reached leaves out an address for which the look-up fails.
// Policy rules apply.
//
//	ip route get fibmatch ADDR
func (c *Conn) Reached(addrs []netip.Addr) (reached []netip.Addr) {
	own := make([]bool, len(addrs))
	rs := make([]Request, len(addrs))
	for i, a := range addrs {
		rs[i] = MatchRoute(a, nil)
		rs[i].answer = func(b []byte) error {
			if len(b) < unix.SizeofRtMsg {
				return fmt.Errorf("netlink message of %d bytes, less than %d", len(b), unix.SizeofRtMsg)
			}
			m := nl.DeserializeRtMsg(b)
			own[i] = (m.Type == unix.RTN_UNICAST || m.Type == unix.RTN_LOCAL) && int(m.Dst_len) == a.BitLen()
			return nil
		}
	}
	c.Each(rs...)
	for i, a := range addrs {
		if own[i] {
			reached = append(reached, a)
		}
	}
	return reached
}

// RouteFilter chooses among Berth's routes.
type RouteFilter struct {
	Index       int    // of the link; 0: any
	Unreachable bool   // true: unreachable routes only
	Local       bool   // true: local routes only
	Table       uint32 // 0: main
}

// Routes lists Berth's routes of both families in a table. The kernel filters the routes, but walks the
// whole table.
//
//	ip route show proto 98 [dev DEV] [table TABLE] type unicast|unreachable|local
func (c *Conn) Routes(f RouteFilter) ([]Route, error) {
	var routes []Route
	for _, family := range families {
		some, err := dump(c, f.request(family), f.parse)
		routes = append(routes, some...)
		if err != nil {
			return routes, err
		}
	}
	return routes, nil
}

// EachRoute calls each for the routes that Routes would list. If the routes change meanwhile, EachRoute
// may call each twice for a route. An error of each ends the list, and EachRoute returns the error; for
// ErrStop it returns nil. A table that is not there has no routes.
//
//	ip route show proto 98 [dev DEV] [table TABLE] type unicast|unreachable|local
func (c *Conn) EachRoute(f RouteFilter, each func(Route) error) error {
	stopped := false
	for _, family := range families {
		err := c.walk(f.request(family), func() {}, func(b []byte) error {
			route, ok, err := f.parse(b)
			if err != nil || !ok {
				return err
			}
			err = each(route)
			stopped = errors.Is(err, ErrStop)
			return err
		})
		if f.Table != 0 && errors.Is(err, kernel.ErrNotFound) {
			continue
		}
		if err != nil || stopped {
			return err
		}
	}
	return nil
}

var families = []uint8{unix.AF_INET, unix.AF_INET6}

// request asks for the routes of one family that f chooses.
func (f RouteFilter) request(family uint8) Request {
	msg := &nl.RtMsg{RtMsg: unix.RtMsg{
		Family:   family,
		Table:    unix.RT_TABLE_MAIN,
		Protocol: stamp.Protocol,
		Type:     unix.RTN_UNICAST,
	}}
	text := fmt.Sprint("ip route show proto ", stamp.Protocol)
	if f.Unreachable {
		msg.Type = unix.RTN_UNREACHABLE
		text += " type unreachable"
	}
	if f.Local {
		msg.Type = unix.RTN_LOCAL
		text += " type local"
	}
	parts := []nl.NetlinkRequestData{msg}
	if f.Table != 0 {
		msg.Table = unix.RT_TABLE_UNSPEC
		parts = append(parts, nl.NewRtAttr(unix.RTA_TABLE, nl.Uint32Attr(f.Table)))
		text += fmt.Sprint(" table ", f.Table)
	}
	if f.Index != 0 {
		parts = append(parts, nl.NewRtAttr(unix.RTA_OIF, nl.Uint32Attr(uint32(f.Index))))
		text += fmt.Sprint(" dev ", f.Index)
	}
	return Request{text: text, typ: unix.RTM_GETROUTE, body: body(parts...)}
}

// parse reads a route, and reports whether f chooses it: an old kernel also sends routes
// that the request asks it to leave out.
func (f RouteFilter) parse(b []byte) (Route, bool, error) {
	route, ours, err := parseRoute(b)
	ours = ours && route.Table == f.Table && route.Unreachable == f.Unreachable && route.Local == f.Local && (f.Index == 0 || route.Index == f.Index)
	return route, ours, err
}

// parseRoute reads an RTM_NEWROUTE, and reports whether the route is one of Berth's, of a type that
// Route can express.
func parseRoute(b []byte) (Route, bool, error) {
	var r Route
	var dst netip.Addr
	if err := attributes(b, unix.SizeofRtMsg, func(typ uint16, value []byte) {
		switch typ {
		case unix.RTA_DST:
			dst, _ = netip.AddrFromSlice(value)
		case unix.RTA_GATEWAY:
			r.Gateway, _ = netip.AddrFromSlice(value)
		case unix.RTA_OIF:
			r.Index = int(uint32Of(value))
		case unix.RTA_PRIORITY:
			r.Metric = uint32Of(value)
		case unix.RTA_TABLE:
			if r.Table = uint32Of(value); r.Table == unix.RT_TABLE_MAIN {
				r.Table = 0
			}
		}
	}); err != nil {
		return Route{}, false, err
	}
	m := nl.DeserializeRtMsg(b)
	switch {
	case dst.IsValid():
	case m.Family == unix.AF_INET: // a default route has no destination
		dst = netip.IPv4Unspecified()
	default:
		dst = netip.IPv6Unspecified()
	}
	r.Dst = netip.PrefixFrom(dst, int(m.Dst_len))
	switch m.Type {
	case unix.RTN_UNREACHABLE:
		r.Unreachable = true
		r.Index = 0 // for IPv6 the kernel sends the index of lo
	case unix.RTN_LOCAL:
		r.Local = true
		r.Index = 0
	case unix.RTN_UNICAST:
	default:
		return r, false, nil
	}
	return r, m.Protocol == stamp.Protocol, nil
}
