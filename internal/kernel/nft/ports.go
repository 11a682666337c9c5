package nft

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// Mapping sends what comes to a port of the node to a port of a pod.
type Mapping struct {
	Protocol string         `json:"protocol"` // tcp, udp or sctp
	Host     netip.AddrPort `json:"host"`     // on the node; the unspecified address stands for all local addresses of its family
	Pod      netip.AddrPort `json:"pod"`      // of the same family
	// Via binds the mapping to a link of the node, by its index: what the mapping has sent to the pod may leave the
	// node by that link only (bound.go). 0: the mapping is bound to no link; NoLink: nothing of it leaves the node.
	Via int `json:"via,omitempty"`
	// BridgePort is the port that leads to the pod if Via is a bridge, by its index: the mapping's packets may leave the bridge
	// by that port only (bridged.go). 0: Via is no bridge.
	BridgePort int `json:"bridgePort,omitempty"`
}

// Leads reports whether the mapping sends what comes to a port of the node, at the address in `at`, to `to`.
func (m Mapping) Leads(protocol string, at, to netip.AddrPort) bool {
	everywhere := m.Host.Addr().IsUnspecified() && m.Host.Addr().Is4() == at.Addr().Is4()
	return m.Protocol == protocol && m.Host.Port() == at.Port() && m.Pod == to && (everywhere || m.Host.Addr() == at.Addr())
}

func (m Mapping) String() string {
	text := fmt.Sprintf("%s %s to %s", m.Protocol, m.Host, m.Pod)
	switch {
	case m.Via == NoLink:
		text += ", closed"
	case m.Via != 0:
		text += fmt.Sprintf(" by link %d", m.Via)
	}
	if m.BridgePort != 0 {
		text += fmt.Sprintf(", port %d", m.BridgePort)
	}
	return text
}

// SamePort reports whether two mappings have the same port of the node.
func (m Mapping) SamePort(o Mapping) bool { return m.Protocol == o.Protocol && m.Host == o.Host }

// Port is a mapping in the table, with the ID of the owner that holds it.
type Port struct {
	Owner string
	Mapping
}

// protocols are the protocols that have host ports, by their nft words.
var protocols = []struct {
	word   string
	number byte
}{{"tcp", unix.IPPROTO_TCP}, {"udp", unix.IPPROTO_UDP}, {"sctp", unix.IPPROTO_SCTP}}

// IsProtocol reports whether a protocol has host ports.
func IsProtocol(word string) bool { return protocolNumber(word) != 0 }

func protocolNumber(word string) byte {
	for _, p := range protocols {
		if p.word == word {
			return p.number
		}
	}
	return 0
}

// protocolWord is the inverse of protocolNumber; "" for others.
func protocolWord(number byte) string {
	for _, p := range protocols {
		if p.number == number {
			return p.word
		}
	}
	return ""
}

// concat is a concatenation of types. Each part takes a multiple of 4 bytes.
type concat []nftables.SetDatatype

func (c concat) datatype() nftables.SetDatatype {
	of, err := nftables.ConcatSetType(c...)
	if err != nil {
		panic(fmt.Sprintf("nft: concatenating types: %v", err)) // cannot happen: no concatenation here has too many parts
	}
	return of
}

// text shows a concatenated value in nft's words.
func (c concat) text(raw string) string {
	words := make([]string, len(c))
	for i, of := range c {
		size := int(of.Bytes+3) &^ 3
		if len(raw) < size {
			return fmt.Sprintf("%x", raw)
		}
		part := []byte(raw[:of.Bytes])
		raw = raw[size:]
		switch {
		case of == nftables.TypeIFIndex:
			words[i] = fmt.Sprint(binary.NativeEndian.Uint32(part))
		case of.Bytes == 1:
			words[i] = cmp.Or(protocolWord(part[0]), fmt.Sprint(part[0]))
		case of.Bytes == 2:
			words[i] = fmt.Sprint(binary.BigEndian.Uint16(part))
		default:
			addr, _ := netip.AddrFromSlice(part)
			words[i] = addr.String()
		}
	}
	return strings.Join(words, " . ")
}

// entry is an element of a set or map that has no intervals.
type entry struct {
	key, value string // bytes; a set's elements have no value
	comment    string // the owner's ID
}

// portSets returns the maps and the set of a family that have the host ports. The table has them
// whether or not there are any host ports:
//   - ports has what is mapped for one address of the node;
//   - anyports has what is mapped for all of them;
//   - hairpin has the pods that have host ports: such a pod may be its own client.
func portSets(f family) (ports, anyports, hairpin set) {
	to := concat{f.datatype, nftables.TypeInetService}
	ports = set{name: "ports" + f.suffix, keys: concat{nftables.TypeInetProto, f.datatype, nftables.TypeInetService}, values: to}
	anyports = set{name: "anyports" + f.suffix, keys: concat{nftables.TypeInetProto, nftables.TypeInetService}, values: to}
	hairpin = set{name: "hairpin" + f.suffix, keys: concat{f.datatype, f.datatype}}
	for _, s := range []*set{&ports, &anyports, &hairpin} {
		s.of = s.keys.datatype()
	}
	return ports, anyports, hairpin
}

// allPortSets are the sets of both families.
func allPortSets() []set {
	var all []set
	for _, f := range []family{ipv4, ipv6} {
		ports, anyports, hairpin := portSets(f)
		bound, exits := boundSets(f)
		all = append(all, ports, anyports, hairpin, bound, exits, podLinks(f))
		all = append(all, bridgeSets(f)...)
	}
	return all
}

// portEntries returns the elements that ports are in the sets, by the sets' names.
func portEntries(ports []Port) map[string][]entry {
	in := map[string][]entry{}
	pods := map[netip.Addr]bool{}
	for _, p := range ports {
		suffix, proto := ipv4.suffix, []byte{protocolNumber(p.Protocol), 0, 0, 0}
		if p.Pod.Addr().Is6() {
			suffix = ipv6.suffix
		}
		host, pod := p.Host.Addr(), p.Pod.Addr()
		e := entry{value: string(pod.AsSlice()) + portBytes(p.Pod.Port()), comment: p.Owner}
		if host.IsUnspecified() {
			e.key = string(proto) + portBytes(p.Host.Port())
			in["anyports"+suffix] = append(in["anyports"+suffix], e)
		} else {
			e.key = string(proto) + string(host.AsSlice()) + portBytes(p.Host.Port())
			in["ports"+suffix] = append(in["ports"+suffix], e)
		}
		if !pods[pod] {
			pods[pod] = true
			in["hairpin"+suffix] = append(in["hairpin"+suffix], entry{key: string(pod.AsSlice()) + string(pod.AsSlice()), comment: p.Owner})
		}
	}
	addBounds(in, ports)
	return in
}

// portBytes returns a port as a part of a concatenation.
func portBytes(port uint16) string {
	return string(binary.BigEndian.AppendUint16(nil, port)) + "\x00\x00"
}

// portsOf is the inverse of portEntries. portsOf leaves out entries that portEntries could not have
// made.
func portsOf(sets []set) []Port {
	var all []Port
	for _, f := range []family{ipv4, ipv6} {
		bytes := int(f.datatype.Bytes)
		ports, anyports, _ := portSets(f)
		via, behind := viasOf(f, sets), bridgePortsOf(f, sets)
		for _, s := range sets {
			if s.name != ports.name && s.name != anyports.name {
				continue
			}
			for _, e := range s.entries {
				any := netip.IPv6Unspecified()
				if f.proto == ipv4.proto {
					any = netip.IPv4Unspecified()
				}
				p := Port{Owner: e.comment}
				key := []byte(e.key)
				if len(key) != int(s.of.Bytes) || len(e.value) != bytes+4 {
					continue
				}
				p.Protocol = protocolWord(key[0])
				if s.name == ports.name {
					any, _ = netip.AddrFromSlice(key[4 : 4+bytes])
				}
				p.Host = netip.AddrPortFrom(any, binary.BigEndian.Uint16(key[len(key)-4:]))
				pod, _ := netip.AddrFromSlice([]byte(e.value)[:bytes])
				p.Pod = netip.AddrPortFrom(pod, binary.BigEndian.Uint16([]byte(e.value)[bytes:]))
				if p.Via = via[boundKey(p.Mapping)]; p.Via != 0 {
					p.BridgePort = behind[pod]
				}
				all = append(all, p)
			}
		}
	}
	slices.SortFunc(all, Port.compare)
	return all
}

// compare orders ports by owner, and an owner's ports as Mapping.Compare does.
func (p Port) compare(o Port) int {
	return cmp.Or(strings.Compare(p.Owner, o.Owner), p.Mapping.Compare(o.Mapping))
}

// Compare orders mappings by protocol, host port, pod and links.
func (m Mapping) Compare(o Mapping) int {
	return cmp.Or(strings.Compare(m.Protocol, o.Protocol), m.Host.Compare(o.Host), m.Pod.Compare(o.Pod), cmp.Compare(m.Via, o.Via),
		cmp.Compare(m.BridgePort, o.BridgePort))
}
