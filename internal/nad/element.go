package nad

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/cni/netconf"
	"github.com/berth-net/berth/internal/cni/scan"
	"github.com/berth-net/berth/internal/misspelt"
)

// elementKeys are the keys of an element. A test compares them with the client's type. deviceID, which
// the specification has, is missing in that type.
var elementKeys = []string{
	"name", "namespace", "interface", "ips", "mac", "infiniband-guid", "portMappings", "bandwidth",
	"cni-args", "default-route", "deviceID", "ipam-claim-reference",
}

// parseElement reads one object of the annotation's JSON form.
func parseElement(s *Selection, element []byte) *api.Error {
	fields, err := scan.Object(element)
	if err != nil {
		return cni.ConfigError("it", element, `an object such as {"name": "net-a"}`)
	}
	for _, f := range fields {
		if e := s.set(f); e != nil {
			return e
		}
	}
	return s.whole()
}

// set reads one key. Null counts as absent.
func (s *Selection) set(f scan.Field) (e *api.Error) {
	if !slices.Contains(elementKeys, f.Key) {
		return unknown(f)
	}
	if scan.IsNull(f.Value) {
		return nil
	}
	switch f.Key {
	case "ips":
		s.IPs, e = parseIPs(f)
	case "mac":
		s.MAC, e = parseMAC(f)
	case "infiniband-guid":
		s.GUID, e = parseGUID(f)
	case "portMappings":
		s.Ports, e = netconf.ParsePorts(f.Key, f.Value)
	case "bandwidth":
		s.Bandwidth, e = netconf.ParseBandwidth(f.Key, f.Value)
	case "cni-args":
		s.Args, e = parseArgs(f)
	case "default-route":
		s.DefaultRoute, e = parseGateways(f)
	default:
		var text string
		if text, e = textOf(f.Key, f.Value); e == nil {
			e = s.setText(f.Key, text)
		}
	}
	return e
}

// unknown answers a key that the specification does not have. A key with a period belongs to another
// implementation (section 4.1.2.1), so that Berth leaves it alone.
func unknown(f scan.Field) *api.Error {
	if strings.Contains(f.Key, ".") {
		return nil
	}
	hint := "remove it"
	if f.Key == "interfaceRequest" { // Multus's name for it before 3.2
		hint = `"interface" is its name`
	} else if k := misspelt.Nearest(f.Key, elementKeys); k != "" {
		hint = fmt.Sprintf("perhaps %q is meant", k)
	}
	return cni.FieldError(f.Key, f.Value, hint)
}

// setText sets a key whose value is a text. An empty text counts as absent.
func (s *Selection) setText(key, text string) *api.Error {
	if text == "" {
		return nil
	}
	switch key {
	case "name":
		s.Name = text
		return checkObjectName(key, text)
	case "namespace":
		s.Namespace = text
		return checkNamespace(key, text)
	case "interface":
		s.Interface = text
		return cni.CheckIfnameKey(key, text)
	case "deviceID":
		s.DeviceID = text
		if !cni.IsShowable(text, maxDevice) {
			return cni.ConfigError(key, quoted(text), "a device's ID: at most 253 printable bytes")
		}
	case "ipam-claim-reference":
		s.IPAMClaim = text
		return checkObjectName(key, text)
	}
	return nil
}

// whole checks what one key alone cannot tell.
func (s *Selection) whole() *api.Error {
	switch {
	case s.Name == "":
		return cni.MissingError("name", "the name of a network attachment definition")
	case s.IPAMClaim != "" && len(s.IPs) > 0:
		return cni.ConfigError("ipam-claim-reference", quoted(s.IPAMClaim), "either ipam-claim-reference or ips")
	}
	return nil
}

// parseIPs reads addresses, with or without prefix lengths. An empty list asks for none.
func parseIPs(f scan.Field) ([]IP, *api.Error) {
	const expected = `a list of at most 32 unicast addresses, such as ["10.2.2.42/24", "2001:db8::5"]`
	elements, err := scan.Array(f.Value)
	if err != nil || len(elements) > maxIPs {
		return nil, cni.ConfigError(f.Key, f.Value, expected)
	}
	var ips []IP
	for _, element := range elements {
		text, err := scan.String(element)
		addr, bits, ok := netconf.ParseIP(text)
		if err != nil || !ok {
			return nil, cni.ConfigError(f.Key, element, expected)
		}
		if slices.ContainsFunc(ips, func(o IP) bool { return o.Addr == addr }) {
			return nil, cni.ConfigError(f.Key, element, "each address once")
		}
		ips = append(ips, IP{addr, bits})
	}
	return ips, nil
}

// parseGateways reads default-route. The result is not nil.
func parseGateways(f scan.Field) ([]netip.Addr, *api.Error) {
	const expected = `a list of addresses of gateways, at most one of each family, such as ["10.2.2.1", "fe80::1"]`
	elements, err := scan.Array(f.Value)
	if err != nil {
		return nil, cni.ConfigError(f.Key, f.Value, expected)
	}
	gateways := []netip.Addr{}
	for _, element := range elements {
		text, err := scan.String(element)
		addr, bits, ok := netconf.ParseIP(text)
		same := func(o netip.Addr) bool { return o.Is4() == addr.Is4() }
		if err != nil || !ok || bits >= 0 || slices.ContainsFunc(gateways, same) {
			return nil, cni.ConfigError(f.Key, element, expected)
		}
		gateways = append(gateways, addr)
	}
	return gateways, nil
}

// parseMAC reads a hardware address of Ethernet or of IP over InfiniBand (specification, "mac"), in any
// notation of net.ParseMAC. An empty text asks for none.
func parseMAC(f scan.Field) (net.HardwareAddr, *api.Error) {
	text, e := textOf(f.Key, f.Value)
	if e != nil || text == "" {
		return nil, e
	}
	mac, err := net.ParseMAC(text)
	usable := err == nil && !isZero(mac) && (len(mac) == 6 && mac[0]&1 == 0 || len(mac) == 20)
	if !usable {
		return nil, cni.ConfigError(f.Key, f.Value, `a unicast address of 6 bytes, such as "02:00:5e:10:00:01", or one of InfiniBand of 20`)
	}
	return mac, nil
}

func parseGUID(f scan.Field) (net.HardwareAddr, *api.Error) {
	text, e := textOf(f.Key, f.Value)
	if e != nil || text == "" {
		return nil, e
	}
	guid, err := net.ParseMAC(text)
	if err != nil || len(guid) != 8 || isZero(guid) {
		return nil, cni.ConfigError(f.Key, f.Value, `8 bytes such as "c2:11:22:33:44:55:66:77"`)
	}
	return guid, nil
}

func isZero(address []byte) bool {
	return !slices.ContainsFunc(address, func(b byte) bool { return b != 0 })
}

// parseArgs reads cni-args. An empty object asks for nothing.
func parseArgs(f scan.Field) (json.RawMessage, *api.Error) {
	fields, err := scan.Object(f.Value)
	if err != nil {
		return nil, cni.ConfigError(f.Key, f.Value, "an object, which becomes args.cni of each plugin")
	}
	if len(fields) == 0 {
		return nil, nil
	}
	return json.RawMessage(f.Value), nil
}
