package rtnl

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Way is how the kernel would send a packet on.
type Way struct {
	Index   int        // of the link that the packet leaves by
	Gateway netip.Addr // zero: the destination is on the link
	Source  netip.Addr // the address that the kernel would send from; zero: the kernel does not say
	Local   bool       // the namespace receives the packet itself
}

// GetWay asks how the kernel would send a packet to an address. For a packet that has come in by the
// link with the index in, from is the packet's source: the kernel then answers as it would route such a
// packet. If there is no way the error is kernel.ErrUnreachable, which for IPv4 also says that the
// link, or the namespace, does not forward; EXDEV says that rp_filter refuses the packet.
//
//	ip route get TO [from FROM iif DEV]
func GetWay(to, from netip.Addr, in int, way *Way) Request {
	msg := &nl.RtMsg{RtMsg: unix.RtMsg{Family: uint8(family(to)), Dst_len: uint8(to.BitLen())}}
	parts := []nl.NetlinkRequestData{msg, nl.NewRtAttr(unix.RTA_DST, to.AsSlice())}
	text := fmt.Sprint("ip route get ", to)
	if from.IsValid() {
		msg.Src_len = uint8(from.BitLen())
		parts = append(parts, nl.NewRtAttr(unix.RTA_SRC, from.AsSlice()))
		text += fmt.Sprint(" from ", from)
	}
	if in != 0 {
		parts = append(parts, nl.NewRtAttr(unix.RTA_IIF, nl.Uint32Attr(uint32(in))))
		text += fmt.Sprint(" iif ", in)
	}
	return Request{
		text:   text,
		typ:    unix.RTM_GETROUTE,
		body:   body(parts...),
		answer: func(b []byte) (err error) { *way, err = parseWay(b); return err },
	}
}

func parseWay(b []byte) (w Way, err error) {
	err = attributes(b, unix.SizeofRtMsg, func(typ uint16, value []byte) {
		switch typ {
		case unix.RTA_OIF:
			w.Index = int(uint32Of(value))
		case unix.RTA_GATEWAY:
			w.Gateway, _ = netip.AddrFromSlice(value)
		case unix.RTA_PREFSRC:
			w.Source, _ = netip.AddrFromSlice(value)
		}
	})
	if err == nil {
		w.Local = nl.DeserializeRtMsg(b).Type == unix.RTN_LOCAL
	}
	return w, err
}

// Carries reads whether a link is up and has a carrier. A veth has a carrier if its peer is up, too.
//
//	ip link show NAME
func Carries(name string, carries *bool) Request {
	r := GetLink(name, &Link{})
	r.answer = func(b []byte) error {
		if len(b) < unix.SizeofIfInfomsg {
			return fmt.Errorf("netlink message of %d bytes, less than %d", len(b), unix.SizeofIfInfomsg)
		}
		const both = unix.IFF_UP | unix.IFF_LOWER_UP
		*carries = binary.NativeEndian.Uint32(b[8:])&both == both
		return nil
	}
	return r
}

// neighbourWords are the states of neighbours as ip writes them.
var neighbourWords = map[uint16]string{
	unix.NUD_NONE: "NONE", unix.NUD_INCOMPLETE: "INCOMPLETE", unix.NUD_REACHABLE: "REACHABLE", unix.NUD_STALE: "STALE",
	unix.NUD_DELAY: "DELAY", unix.NUD_PROBE: "PROBE", unix.NUD_FAILED: "FAILED", unix.NUD_NOARP: "NOARP", unix.NUD_PERMANENT: "PERMANENT",
}

// NeighbourState reads the state of a neighbour, permanent or not, in ip's words. If there is no
// neighbour the error is kernel.ErrNotFound.
//
//	ip neigh get ADDR dev DEV
func NeighbourState(addr netip.Addr, index int, state *string) Request {
	r := GetNeighbour(addr, index, &Neighbour{})
	r.answer = func(b []byte) error {
		if len(b) < unix.SizeofNdMsg {
			return fmt.Errorf("netlink message of %d bytes, less than %d", len(b), unix.SizeofNdMsg)
		}
		*state = neighbourWords[binary.NativeEndian.Uint16(b[8:])]
		return nil
	}
	return r
}

// Gateway is where a default route leads.
type Gateway struct {
	Addr  netip.Addr // zero: every destination is on the link
	Index int        // of the link
}

// Gateway returns where the family's default route with the lowest metric leads; false if there is no
// such route. Policy rules do not apply.
//
//	ip route show default
func (c *Conn) Gateway(ipv6 bool) (g Gateway, found bool, err error) {
	message := nl.RtMsg{RtMsg: unix.RtMsg{Family: unix.AF_INET, Table: unix.RT_TABLE_MAIN, Type: unix.RTN_UNICAST}}
	if ipv6 {
		message.Family = unix.AF_INET6
	}
	best := uint32(0)
	r := Request{text: "ip route show default", typ: unix.RTM_GETROUTE, body: body(&message)}
	_, err = dump(c, r, func(b []byte) (none struct{}, keep bool, err error) {
		if len(b) < unix.SizeofRtMsg {
			return none, false, fmt.Errorf("netlink message of %d bytes, less than %d", len(b), unix.SizeofRtMsg)
		}
		if m := nl.DeserializeRtMsg(b); m.Dst_len != 0 || m.Type != unix.RTN_UNICAST || m.Table != unix.RT_TABLE_MAIN {
			return none, false, nil
		}
		var seen Gateway
		metric := uint32(0)
		err = attributes(b, unix.SizeofRtMsg, func(typ uint16, value []byte) {
			switch typ {
			case unix.RTA_OIF:
				seen.Index = int(uint32Of(value))
			case unix.RTA_PRIORITY:
				metric = uint32Of(value)
			case unix.RTA_GATEWAY:
				seen.Addr, _ = netip.AddrFromSlice(value)
			case unix.RTA_MULTIPATH: // the route's first way: all its ways are as good
				if len(value) < unix.SizeofRtNexthop || seen.Index != 0 {
					return
				}
				seen.Index = int(uint32Of(value[4:]))
				size := min(int(binary.NativeEndian.Uint16(value)), len(value))
				_ = attributes(value[:max(size, unix.SizeofRtNexthop)], unix.SizeofRtNexthop, func(typ uint16, value []byte) {
					if typ == unix.RTA_GATEWAY {
						seen.Addr, _ = netip.AddrFromSlice(value)
					}
				})
			}
		})
		if err == nil && (!found || metric < best) {
			g, best, found = seen, metric, true
		}
		return none, false, err
	})
	return g, found, err
}
