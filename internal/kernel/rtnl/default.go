package rtnl

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/stamp"
)

// Families are some of the two address families.
type Families struct{ IPv4, IPv6 bool }

// Has reports whether the family of an address is among them.
func (f Families) Has(a netip.Addr) bool { return a.Is4() && f.IPv4 || a.Is6() && f.IPv6 }

// Add adds the family of an address.
func (f *Families) Add(a netip.Addr) {
	f.IPv4, f.IPv6 = f.IPv4 || a.Is4(), f.IPv6 || a.Is6()
}

// Default is a unicast default route of any table, whoever made it. One that was read keeps all that it has, such as several next hops,
// and can be added and deleted as it is.
type Default struct {
	IPv6    bool
	Index   int        // of the link; 0: several next hops
	Gateway netip.Addr // zero: none, or several next hops
	Metric  uint32
	Table   uint32 // 0: main
	Ours    bool   // it has Berth's protocol number

	msg   unix.RtMsg
	attrs []attr // without the table
}

// Aside is the table of a pod for the default routes of one of its interfaces that another network's have put aside (kinds/podgateway). Interfaces of
// Berth have tables of lower numbers for themselves (kinds/link).
func Aside(index int) uint32 { return 1<<30 + uint32(index) }

type attr struct {
	typ   uint16
	value []byte
}

// NewDefault returns the default route that ip adds to the main table. The kernel takes the gateway only if it is on the link's networks.
//
//	ip route add default via GATEWAY dev DEV
func NewDefault(index int, gateway netip.Addr) Default {
	return Default{
		IPv6: gateway.Is6(), Index: index, Gateway: gateway,
		msg:   unix.RtMsg{Family: uint8(family(gateway)), Protocol: unix.RTPROT_BOOT, Scope: unix.RT_SCOPE_UNIVERSE, Type: unix.RTN_UNICAST},
		attrs: []attr{{unix.RTA_GATEWAY, gateway.AsSlice()}, {unix.RTA_OIF, nl.Uint32Attr(uint32(index))}},
	}
}

// In returns the route in another table; 0: main.
func (d Default) In(table uint32) Default {
	d.Table = table
	return d
}

// String returns the route as ip's arguments.
func (d Default) String() string {
	text := "0.0.0.0/0"
	if d.IPv6 {
		text = "::/0"
	}
	if d.Gateway.IsValid() {
		text += fmt.Sprint(" via ", d.Gateway)
	}
	if d.Index != 0 {
		text += fmt.Sprint(" dev ", d.Index)
	}
	if d.Metric != 0 {
		text += fmt.Sprint(" metric ", d.Metric)
	}
	if d.Table != 0 {
		text += fmt.Sprint(" table ", d.Table)
	}
	return text
}

// AddDefault adds a default route. If its table has one of the same metric the error is kernel.ErrExists.
//
//	ip route add default ...
func AddDefault(d Default) Request {
	return Request{text: "ip route add " + d.String(), typ: unix.RTM_NEWROUTE, flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL, body: d.body()}
}

// DelDefault deletes a default route. If there is none that is the same in all that d has the error is kernel.ErrNotFound.
//
//	ip route del default ...
func DelDefault(d Default) Request {
	return Request{text: "ip route del " + d.String(), typ: unix.RTM_DELROUTE, body: d.body()}
}

func (d Default) body() []byte {
	table := d.Table
	if table == 0 {
		table = unix.RT_TABLE_MAIN
	}
	parts := []nl.NetlinkRequestData{&nl.RtMsg{RtMsg: d.msg}, nl.NewRtAttr(unix.RTA_TABLE, nl.Uint32Attr(table))}
	for _, a := range d.attrs {
		parts = append(parts, nl.NewRtAttr(int(a.typ), a.value))
	}
	return body(parts...)
}

// EachDefault calls each for the unicast default routes of one family in all tables, whoever made them. The kernel sends all routes of the
// family, and EachDefault reads no more than most of them: more are an error. If the routes change meanwhile, EachDefault may
// call each twice for a route. An error of each ends the list, and EachDefault returns the error.
//
//	ip -4|-6 route show table all
func (c *Conn) EachDefault(ipv6 bool, most int, each func(Default) error) error {
	msg := &nl.RtMsg{RtMsg: unix.RtMsg{Family: unix.AF_INET}}
	if ipv6 {
		msg.Family = unix.AF_INET6
	}
	seen := 0
	request := Request{text: "ip route show table all", typ: unix.RTM_GETROUTE, body: body(msg)}
	return c.walk(request, func() { seen = 0 }, func(b []byte) error {
		if seen++; seen > most {
			return fmt.Errorf("there are more than %d routes, and the agent does not look at the rest", most)
		}
		d, is, err := parseDefault(b)
		if err != nil || !is {
			return err
		}
		return each(d)
	})
}

// parseDefault reads an RTM_NEWROUTE, and reports whether the route is a unicast default route.
func parseDefault(b []byte) (d Default, is bool, err error) {
	err = attributes(b, unix.SizeofRtMsg, func(typ uint16, value []byte) {
		switch typ {
		case unix.RTA_GATEWAY:
			d.Gateway, _ = netip.AddrFromSlice(value)
		case unix.RTA_OIF:
			d.Index = int(uint32Of(value))
		case unix.RTA_PRIORITY:
			d.Metric = uint32Of(value)
		case unix.RTA_TABLE:
			if d.Table = uint32Of(value); d.Table == unix.RT_TABLE_MAIN {
				d.Table = 0
			}
			return
		case unix.RTA_CACHEINFO: // the kernel only sends it
			return
		}
		d.attrs = append(d.attrs, attr{typ, append([]byte(nil), value...)})
	})
	if err != nil {
		return Default{}, false, err
	}
	m := nl.DeserializeRtMsg(b).RtMsg
	d.IPv6, d.Ours = m.Family == unix.AF_INET6, m.Protocol == stamp.Protocol
	m.Table = unix.RT_TABLE_UNSPEC
	m.Flags &= unix.RTNH_F_ONLINK // the others say what became of the link
	d.msg = m
	return d, m.Dst_len == 0 && m.Type == unix.RTN_UNICAST && m.Src_len == 0, nil
}
