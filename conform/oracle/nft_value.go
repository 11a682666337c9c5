package oracle

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// kind is a type of data in nftables, by nft(8)'s name, as far as this package tells its values in nft's words; all others are told in hexadecimal digits.
type kind string

const (
	kindAddr4   kind = "ipv4_addr"
	kindAddr6   kind = "ipv6_addr"
	kindMAC     kind = "ether_addr"
	kindEther   kind = "ether_type"
	kindProto   kind = "inet_proto"
	kindPort    kind = "inet_service"
	kindNf      kind = "nf_proto"
	kindMark    kind = "mark"
	kindIndex   kind = "iface_index"
	kindIfname  kind = "ifname"
	kindArphrd  kind = "iface_type"
	kindState   kind = "ct_state"
	kindStatus  kind = "ct_status"
	kindDir     kind = "ct_dir"
	kindFlags   kind = "tcp_flag"
	kindICMP    kind = "icmp_type"
	kindICMP6   kind = "icmpv6_type"
	kindPkt     kind = "pkt_type"
	kindFib     kind = "fib_addrtype"
	kindHost    kind = "host integer"    // in the machine's order
	kindInteger kind = "network integer" // in the network's order
	kindHex     kind = ""
)

// nftNames are nft's names of values.
var nftNames = map[kind]map[uint64]string{
	kindProto:  {1: "icmp", 6: "tcp", 17: "udp", 33: "dccp", 50: "esp", 51: "ah", 58: "ipv6-icmp", 108: "comp", 132: "sctp", 136: "udplite"},
	kindNf:     {2: "ipv4", 10: "ipv6"},
	kindEther:  {0x0800: "ip", 0x0806: "arp", 0x86dd: "ip6", 0x8100: "8021q", 0x88a8: "8021ad"},
	kindArphrd: {1: "ether", 772: "loopback"},
	kindDir:    {0: "original", 1: "reply"},
	kindICMP: {0: "echo-reply", 3: "destination-unreachable", 4: "source-quench", 5: "redirect", 8: "echo-request", 9: "router-advertisement",
		10: "router-solicitation", 11: "time-exceeded", 12: "parameter-problem"},
	kindICMP6: {1: "destination-unreachable", 2: "packet-too-big", 3: "time-exceeded", 4: "parameter-problem", 128: "echo-request", 129: "echo-reply",
		133: "nd-router-solicit", 134: "nd-router-advert", 135: "nd-neighbor-solicit", 136: "nd-neighbor-advert", 137: "nd-redirect"},
	kindPkt: {0: "host", 1: "broadcast", 2: "multicast", 3: "other"},
	kindFib: {0: "unspec", 1: "unicast", 2: "local", 3: "broadcast", 4: "anycast", 5: "multicast", 6: "blackhole", 7: "unreachable", 8: "prohibit"},
}

// bitNames are nft's names of bits.
var bitNames = map[kind][]string{
	kindState:  {"invalid", "established", "related", "new", "", "", "untracked"},
	kindStatus: {"expected", "seen-reply", "assured", "confirmed", "snat", "dnat", "", "", "", "dying"},
	kindFlags:  {"fin", "syn", "rst", "psh", "ack", "urg", "ecn", "cwr"},
}

// sizes are how many bytes a value has.
var sizes = map[kind]int{
	kindAddr4: 4, kindAddr6: 16, kindMAC: 6, kindEther: 2, kindProto: 1, kindPort: 2, kindNf: 1, kindMark: 4, kindIndex: 4, kindIfname: 16, kindArphrd: 2,
	kindState: 4, kindStatus: 4, kindDir: 1, kindFlags: 1, kindICMP: 1, kindICMP6: 1, kindPkt: 1, kindFib: 4,
}

// hostOrder are the kinds whose integers are in the machine's order.
var hostOrder = []kind{kindMark, kindIndex, kindState, kindStatus, kindFib, kindHost, kindArphrd}

// integer reads a value of a kind; false if it has too many bytes.
func (k kind) integer(data []byte) (n uint64, ok bool) {
	if len(data) > 8 || len(data) == 0 {
		return 0, false
	}
	if slices.Contains(hostOrder, k) && binary.NativeEndian.Uint16([]byte{1, 0}) == 1 {
		data = slices.Clone(data)
		slices.Reverse(data)
	}
	for _, b := range data {
		n = n<<8 | uint64(b)
	}
	return n, true
}

// say tells a value in nft's words. Two values of a kind are never told in the same words. links are the names of the links, by index.
func (k kind) say(data []byte, links map[int]string) string {
	hex := fmt.Sprintf("0x%x", data)
	if size, ok := sizes[k]; ok && k != kindIfname && size != len(data) {
		return hex
	}
	switch k {
	case kindAddr4, kindAddr6:
		addr, _ := netip.AddrFromSlice(data)
		return addr.String()
	case kindMAC:
		return net.HardwareAddr(data).String()
	case kindIfname:
		return sayName(data)
	case kindHex:
		return hex
	}
	n, ok := k.integer(data)
	if !ok {
		return hex
	}
	switch name := nftNames[k][n]; {
	case name != "":
		return name
	case k == kindMark:
		return fmt.Sprintf("0x%08x", n)
	case k == kindIndex && links[int(n)] != "":
		return strconv.Quote(links[int(n)])
	case bitNames[k] != nil:
		if text, ok := k.bits(n); ok && bits.OnesCount64(n) > 0 {
			return text
		}
		return hex
	}
	return strconv.FormatUint(n, 10)
}

// bits tells a value's bits by their names; false if one of them has none.
func (k kind) bits(n uint64) (string, bool) {
	var all []string
	for i := range 64 {
		if n&(1<<i) == 0 {
			continue
		}
		if i >= len(bitNames[k]) || bitNames[k][i] == "" {
			return "", false
		}
		all = append(all, bitNames[k][i])
	}
	return strings.Join(all, ","), len(all) > 0
}

// sayName tells the name of an interface, which has zeros up to 16 bytes, or the beginning of one, which has none.
func sayName(data []byte) string {
	name, beginning := string(bytes.TrimRight(data, "\x00")), len(data) < 16
	if len(data) == 0 || len(data) > 16 || len(name) == len(data) != beginning || strings.ContainsFunc(name, func(r rune) bool { return r < '!' || r > '~' || r == '*' || r == '"' || r == '\\' }) {
		return fmt.Sprintf("0x%x", data)
	}
	if beginning {
		name += "*"
	}
	return strconv.Quote(name)
}

// prefixOf returns the length of a mask whose ones come before its zeros.
func prefixOf(mask []byte) (ones int, ok bool) {
	ones, size := net.IPMask(mask).Size()
	return ones, size == 8*len(mask) && size > 0
}
