package oracle

import (
	"fmt"

	nft "github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// loaded is what an expression loads into a register: the left side of a comparison.
type loaded struct {
	text     string // in nft's words
	kind     kind
	size     int // bytes
	whole    int // bytes of the field of which these are the first; 0: size
	register uint32
	needs    layer // the layer whose protocol text has: "tcp dport"
}

// layer is one whose protocol a rule may know. nft(8) leaves a comparison with the protocol out if the next one says it anyway: "tcp dport 80" also
// compares meta l4proto with tcp.
type layer int

const (
	noLayer layer = iota
	linkLayer
	netLayer
	transportLayer
	layers
)

// protocols are what a rule knows of the layers at a place: "ether", "ip" and "tcp", for example; "" is nothing.
type protocols [layers]string

// known returns what all rules of a family know.
func (r *nftTeller) known() (p protocols) {
	switch r.family {
	case nft.TableFamilyIPv4:
		p[netLayer] = "ip"
	case nft.TableFamilyIPv6:
		p[netLayer] = "ip6"
	case nft.TableFamilyBridge, nft.TableFamilyNetdev:
		p[linkLayer] = "ether"
	}
	return p
}

// metaKeys and ctKeys are the names and kinds of NFT_META_ and NFT_CT_ keys.
var metaKeys = map[uint32]struct {
	text string
	kind kind
}{
	unix.NFT_META_LEN: {"meta length", kindHost}, unix.NFT_META_PROTOCOL: {"meta protocol", kindEther}, unix.NFT_META_MARK: {"meta mark", kindMark},
	unix.NFT_META_IIF: {"iif", kindIndex}, unix.NFT_META_OIF: {"oif", kindIndex}, unix.NFT_META_IIFNAME: {"iifname", kindIfname},
	unix.NFT_META_OIFNAME: {"oifname", kindIfname}, unix.NFT_META_IIFTYPE: {"iiftype", kindArphrd}, unix.NFT_META_OIFTYPE: {"oiftype", kindArphrd},
	unix.NFT_META_SKUID: {"meta skuid", kindHost}, unix.NFT_META_SKGID: {"meta skgid", kindHost}, unix.NFT_META_NFTRACE: {"meta nftrace", kindHost},
	unix.NFT_META_NFPROTO: {"meta nfproto", kindNf}, unix.NFT_META_L4PROTO: {"meta l4proto", kindProto}, unix.NFT_META_PKTTYPE: {"meta pkttype", kindPkt},
	unix.NFT_META_IIFGROUP: {"iifgroup", kindHost}, unix.NFT_META_OIFGROUP: {"oifgroup", kindHost}, unix.NFT_META_CGROUP: {"meta cgroup", kindHost},
	unix.NFT_META_CPU: {"meta cpu", kindHost}, unix.NFT_META_PRIORITY: {"meta priority", kindHex},
}

var ctKeys = map[uint32]struct {
	text string
	kind kind
}{
	unix.NFT_CT_STATE: {"state", kindState}, unix.NFT_CT_STATUS: {"status", kindStatus}, unix.NFT_CT_MARK: {"mark", kindMark},
	unix.NFT_CT_DIRECTION: {"direction", kindDir}, unix.NFT_CT_PROTOCOL: {"protocol", kindProto}, unix.NFT_CT_PROTO_SRC: {"proto-src", kindPort},
	unix.NFT_CT_PROTO_DST: {"proto-dst", kindPort}, unix.NFT_CT_L3PROTOCOL: {"l3proto", kindNf}, unix.NFT_CT_ZONE: {"zone", kindHost},
	unix.NFT_CT_SRC_IP: {"ip saddr", kindAddr4}, unix.NFT_CT_DST_IP: {"ip daddr", kindAddr4},
	unix.NFT_CT_SRC_IP6: {"ip6 saddr", kindAddr6}, unix.NFT_CT_DST_IP6: {"ip6 daddr", kindAddr6},
}

// field is a field of a header.
type field struct {
	at, size int
	name     string
	kind     kind
}

var (
	ports  = []field{{0, 2, "sport", kindPort}, {2, 2, "dport", kindPort}}
	fields = map[string][]field{
		"ether": {{0, 6, "daddr", kindMAC}, {6, 6, "saddr", kindMAC}, {12, 2, "type", kindEther}},
		"ip": {{2, 2, "length", kindInteger}, {4, 2, "id", kindInteger}, {6, 2, "frag-off", kindHex}, {8, 1, "ttl", kindInteger}, {9, 1, "protocol", kindProto},
			{10, 2, "checksum", kindInteger}, {12, 4, "saddr", kindAddr4}, {16, 4, "daddr", kindAddr4}},
		"ip6": {{4, 2, "length", kindInteger}, {6, 1, "nexthdr", kindProto}, {7, 1, "hoplimit", kindInteger}, {8, 16, "saddr", kindAddr6}, {24, 16, "daddr", kindAddr6}},
		"tcp": append([]field{{4, 4, "sequence", kindInteger}, {8, 4, "ackseq", kindInteger}, {13, 1, "flags", kindFlags}, {14, 2, "window", kindInteger}}, ports...),
		"udp": append([]field{{4, 2, "length", kindInteger}, {6, 2, "checksum", kindInteger}}, ports...), "sctp": ports, "dccp": ports, "udplite": ports,
		"icmp": {{0, 1, "type", kindICMP}, {1, 1, "code", kindInteger}}, "icmpv6": {{0, 1, "type", kindICMP6}, {1, 1, "code", kindInteger}},
		"th": ports,
	}
)

// load reads an expression that loads something, in a place where the rule knows protocols.
func (r *nftTeller) load(at int, p protocols) (l loaded, ok bool) {
	if at >= len(r.exprs) {
		return l, false
	}
	e := r.exprs[at]
	if e.name == "ct" { // package nft reads no direction
		return loadCt(e)
	}
	switch known := e.known.(type) {
	case *expr.Meta:
		k, ok := metaKeys[uint32(known.Key)]
		return loaded{text: k.text, kind: k.kind, size: metaSize(k.kind, known.Key), register: known.Register}, ok && !known.SourceRegister
	case *expr.Fib:
		return loadFib(known)
	case *expr.Payload:
		if known.OperationType == expr.PayloadLoad {
			return loadPayload(known, p), known.Base <= expr.PayloadBaseTransportHeader && known.Len > 0
		}
	}
	return l, false
}

// metaSize returns how many bytes of a register a key fills.
func metaSize(k kind, key expr.MetaKey) int {
	switch {
	case sizes[k] != 0:
		return sizes[k]
	case key == expr.MetaKeyNFTRACE:
		return 1
	}
	return 4
}

func loadCt(e expression) (l loaded, ok bool) {
	key, _ := e.number(unix.NFTA_CT_KEY)
	register, loads := e.number(unix.NFTA_CT_DREG)
	k, ok := ctKeys[key]
	l = loaded{text: "ct " + k.text, kind: k.kind, size: sizes[k.kind], register: register}
	if key == unix.NFT_CT_ZONE {
		l.size = 2
	}
	if direction, has := e.number(unix.NFTA_CT_DIRECTION); has {
		name := nftNames[kindDir][uint64(direction)]
		l.text, ok = "ct "+name+" "+k.text, ok && name != ""
	}
	return l, ok && loads
}

func loadFib(e *expr.Fib) (l loaded, ok bool) {
	text := "fib"
	for _, f := range []struct {
		on   bool
		name string
	}{{e.FlagSADDR, "saddr"}, {e.FlagDADDR, "daddr"}, {e.FlagMARK, "mark"}, {e.FlagIIF, "iif"}, {e.FlagOIF, "oif"}} {
		if !f.on {
			continue
		}
		if text != "fib" {
			text += " ."
		}
		text += " " + f.name
	}
	l = loaded{register: e.Register, size: 4}
	switch {
	case e.FlagPRESENT || text == "fib":
		return l, false
	case e.ResultADDRTYPE:
		l.text, l.kind = text+" type", kindFib
	case e.ResultOIF:
		l.text, l.kind = text+" oif", kindIndex
	case e.ResultOIFNAME:
		l.text, l.kind, l.size = text+" oifname", kindIfname, 16
	default:
		return l, false
	}
	return l, true
}

// loadPayload names a field by the protocol that the rule knows, and else by its place, as nft(8) does: @nh,96,32 are 32 bits from bit 96.
func loadPayload(e *expr.Payload, p protocols) loaded {
	of := map[expr.PayloadBase]layer{expr.PayloadBaseLLHeader: linkLayer, expr.PayloadBaseNetworkHeader: netLayer, expr.PayloadBaseTransportHeader: transportLayer}[e.Base]
	protocol := p[of]
	needs := of
	if of == transportLayer && protocol == "" {
		protocol, needs = "th", noLayer
	}
	for _, f := range fields[protocol] {
		part := int(e.Len) < f.size && (f.kind == kindAddr4 || f.kind == kindAddr6)
		if f.at == int(e.Offset) && (f.size == int(e.Len) || part) {
			return loaded{text: protocol + " " + f.name, kind: f.kind, size: int(e.Len), whole: f.size, register: e.DestRegister, needs: needs}
		}
	}
	base := map[layer]string{linkLayer: "ll", netLayer: "nh", transportLayer: "th"}[of]
	return loaded{text: fmt.Sprintf("@%s,%d,%d", base, 8*e.Offset, 8*e.Len), size: int(e.Len), register: e.DestRegister}
}
