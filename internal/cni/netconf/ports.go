package netconf

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/cni/scan"
)

// Port is a port of the node that the runtime wants to lead to the pod.
type Port struct {
	Protocol  string     // tcp, udp or sctp
	HostIP    netip.Addr // the zero Addr stands for all addresses of the node; 0.0.0.0 and :: for all of a family
	Host      uint16
	Container uint16
}

// maxPorts is how many host ports a pod may have. With so many, the ledger has room for the pod's
// record (ledger.MaxOwner), whatever else the record has.
const maxPorts = 512

// ParsePorts reads host ports (CNI conventions, "portMappings"), which a key has. Keys of mappings may be
// in any case, because containerd writes HostPort where others write hostPort. A port that is asked for
// twice counts once.
func ParsePorts(key string, value []byte) ([]Port, *api.Error) {
	elements, err := scan.Array(value)
	if err != nil || len(elements) > maxPorts {
		return nil, cni.ConfigError(key, value, "a list of at most 512 mappings")
	}
	var ports []Port
	for _, element := range elements {
		p, e := parsePort(key, element)
		if e != nil {
			return nil, e
		}
		if slices.Contains(ports, p) {
			continue
		}
		if slices.ContainsFunc(ports, p.sameHost) {
			return nil, cni.ConfigError(key, element, "each host port once")
		}
		ports = append(ports, p)
	}
	return ports, nil
}

// sameHost reports whether two different mappings lead the same port of the node to two ports of
// the pod. A mapping without an address counts here as one with the unspecified address of a family.
func (p Port) sameHost(o Port) bool {
	alike := p.HostIP == o.HostIP || !p.HostIP.IsValid() && o.HostIP.IsUnspecified() || p.HostIP.IsUnspecified() && !o.HostIP.IsValid()
	return p.Protocol == o.Protocol && alike && p.Host == o.Host && p.Container != o.Container
}

func parsePort(key string, element []byte) (p Port, e *api.Error) {
	const number = "a number from 1 to 65535"
	fields, err := scan.Object(element)
	if err != nil {
		return p, cni.ConfigError(key, element, "objects")
	}
	p.Protocol = "tcp"
	for _, f := range fields {
		if scan.IsNull(f.Value) {
			continue
		}
		ok, expected := false, number
		switch strings.ToLower(f.Key) {
		case "hostport":
			p.Host, ok = portNumber(f.Value)
		case "containerport":
			p.Container, ok = portNumber(f.Value)
		case "protocol":
			p.Protocol, ok = protocol(f.Value)
			expected = "tcp, udp or sctp"
		case "hostip":
			p.HostIP, ok = hostIP(f.Value)
			expected = "an address of the node, or an empty string for all of them"
		default:
			return p, cni.FieldError(key+"."+f.Key, f.Value, "a mapping has hostPort, containerPort, protocol and hostIP")
		}
		if !ok {
			return p, cni.ConfigError(key+"."+f.Key, f.Value, expected)
		}
	}
	if p.Host == 0 {
		return p, cni.MissingError(key+".hostPort", number)
	}
	if p.Container == 0 {
		return p, cni.MissingError(key+".containerPort", number)
	}
	return p, nil
}

func portNumber(value []byte) (uint16, bool) {
	n, err := strconv.ParseUint(string(value), 10, 16)
	return uint16(n), err == nil && n != 0
}

// protocol reads a protocol in any case, as portmap does. "" is tcp.
func protocol(value []byte) (string, bool) {
	text, err := scan.String(value)
	if text == "" {
		text = "tcp"
	}
	text = strings.ToLower(text)
	return text, err == nil && slices.Contains([]string{"tcp", "udp", "sctp"}, text)
}

func hostIP(value []byte) (netip.Addr, bool) {
	text, err := scan.String(value)
	if text == "" {
		return netip.Addr{}, err == nil
	}
	ip, err := netip.ParseAddr(text)
	return ip, err == nil && ip.Zone() == "" && !ip.Is4In6() && !ip.IsMulticast() && !ip.IsLinkLocalUnicast()
}
