package netconf

import (
	"encoding/hex"
	"net/netip"
	"strings"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/cni/scan"
)

// Bounds of dns. resolv.conf(5) uses less of each.
const (
	maxDNSList = 32
	maxDNSText = 255  // bytes: a domain name (RFC 1035)
	maxDNSAll  = 2048 // bytes of a list's strings together, as Kubernetes bounds a pod's search list
)

// Capabilities returns the capabilities that a configuration may declare, by name.
func Capabilities() []string { return []string{"bandwidth", "ips", "mac", "portMappings"} }

// setRuntime reads runtimeConfig: what a runtime passes for the capabilities
// that a configuration declares (CNI conventions, "capabilities"). nil: nothing is passed.
func (c *Conf) setRuntime(value []byte) *api.Error {
	if value == nil {
		return nil
	}
	fields, err := scan.Object(value)
	if err != nil {
		return cni.ConfigError("runtimeConfig", value, "an object")
	}
	for _, f := range fields {
		var e *api.Error
		switch {
		case scan.IsNull(f.Value):
		case f.Key == "ips" && c.IPAM != nil: // the IPAM plugin's
		case f.Key == "ips":
			c.IPs, e = parseIPs(f.Value)
		case f.Key == "mac":
			c.MAC, e = parseMAC(f.Value)
		case f.Key == "portMappings":
			c.Ports, e = ParsePorts("runtimeConfig.portMappings", f.Value)
		case f.Key == "bandwidth":
			c.Bandwidth, e = ParseBandwidth("runtimeConfig.bandwidth", f.Value)
		case !empty(f.Value):
			return cni.FieldError("runtimeConfig."+f.Key, f.Value, "capabilities of Berth are ips, mac, portMappings and bandwidth; do not declare others")
		}
		if e != nil {
			return e
		}
	}
	return nil
}

// checkMTU checks the MTU against the families of the requested addresses, the only families
// that are certain by now.
func (c *Conf) checkMTU() *api.Error {
	for _, ip := range c.IPs {
		if ip.Is6() && c.MTU != 0 && c.MTU < MinMTU6 {
			return cni.Errorf(cni.CodeConfig, "invalid configuration", "mtu is %d; IPv6 (%s is requested) needs at least %d", c.MTU, ip, MinMTU6)
		}
	}
	return nil
}

// empty reports whether a value asks for nothing.
func empty(value []byte) bool {
	switch strings.Join(strings.Fields(string(value)), "") {
	case "[]", "{}", `""`, "null":
		return true
	}
	return false
}

// parseIPs reads requested addresses. A prefix length is accepted and ignored: a routed pod
// has no more than its address.
func parseIPs(value []byte) ([]netip.Addr, *api.Error) {
	const key = "runtimeConfig.ips"
	const expected = `unicast addresses as strings, at most one of each family, such as ["10.88.0.7", "fd00::7/64"]`
	elements, err := scan.Array(value)
	if err != nil || len(elements) > 2 {
		return nil, cni.ConfigError(key, value, expected)
	}
	var ips []netip.Addr
	for _, element := range elements {
		text, err := scan.String(element)
		if err != nil {
			return nil, cni.ConfigError(key, element, expected)
		}
		ip, _, ok := ParseIP(text)
		if !ok || len(ips) == 1 && ips[0].Is4() == ip.Is4() {
			return nil, cni.ConfigError(key, element, expected)
		}
		ips = append(ips, ip)
	}
	return ips, nil
}

// ParseIP reads an address that a pod can have, with or without a prefix length: bits is -1 without.
func ParseIP(text string) (ip netip.Addr, bits int, ok bool) {
	bits = -1
	ip, err := netip.ParseAddr(text)
	if err != nil {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return netip.Addr{}, -1, false
		}
		ip, bits = prefix.Addr(), prefix.Bits()
	}
	usable := ip.Zone() == "" && !ip.Is4In6() && !ip.IsUnspecified() && !ip.IsMulticast() && !ip.IsLoopback()
	return ip, bits, usable
}

// parseMAC reads a requested MAC: six bytes in hexadecimal with colons.
func parseMAC(value []byte) ([]byte, *api.Error) {
	fail := cni.ConfigError("runtimeConfig.mac", value, `a unicast 48-bit address such as "02:00:5e:10:00:01"`)
	text, err := scan.String(value)
	if err != nil {
		return nil, fail
	}
	if text == "" { // the runtime asks for no MAC
		return nil, nil
	}
	parts := strings.Split(text, ":")
	if len(parts) != 6 {
		return nil, fail
	}
	mac := make([]byte, 0, 6)
	for _, part := range parts {
		b, err := hex.DecodeString(part)
		if err != nil || len(b) != 1 {
			return nil, fail
		}
		mac = append(mac, b[0])
	}
	if mac[0]&1 == 1 || string(mac) == "\x00\x00\x00\x00\x00\x00" { // multicast, broadcast, none
		return nil, fail
	}
	return mac, nil
}

// parseDNS reads the dns of a configuration, which goes into the result.
func parseDNS(value []byte) (DNS, *api.Error) {
	fields, err := scan.Object(value)
	if err != nil {
		return DNS{}, cni.ConfigError("dns", value, "an object")
	}
	var d DNS
	for _, f := range fields {
		var e *api.Error
		switch {
		case scan.IsNull(f.Value):
		case f.Key == "nameservers":
			d.Nameservers, e = textList("dns.nameservers", f.Value)
		case f.Key == "search":
			d.Search, e = textList("dns.search", f.Value)
		case f.Key == "options":
			d.Options, e = textList("dns.options", f.Value)
		case f.Key == "domain":
			if d.Domain, err = scan.String(f.Value); err != nil || !cni.IsShowable(d.Domain, maxDNSText) {
				e = cni.ConfigError("dns.domain", f.Value, "a domain name")
			}
		default:
			e = cni.FieldError("dns."+f.Key, f.Value, "dns has nameservers, domain, search and options")
		}
		if e != nil {
			return DNS{}, e
		}
	}
	for _, s := range d.Nameservers {
		if _, err := netip.ParseAddr(s); err != nil {
			return DNS{}, cni.Errorf(cni.CodeConfig, "invalid configuration", "dns.nameservers has %.64q; expected addresses", s)
		}
	}
	return d, nil
}

func textList(key string, value []byte) ([]string, *api.Error) {
	elements, err := scan.Array(value)
	if err != nil || len(elements) > maxDNSList {
		return nil, cni.ConfigError(key, value, "a list of at most 32 strings")
	}
	var list []string
	all := 0
	for _, element := range elements {
		s, err := scan.String(element)
		if all += len(s); all > maxDNSAll {
			return nil, cni.ConfigError(key, value, "strings of at most 2048 bytes together")
		}
		if err != nil || s == "" || !cni.IsShowable(s, maxDNSText) {
			return nil, cni.ConfigError(key, element, "strings of 1 to 255 printable bytes")
		}
		list = append(list, s)
	}
	return list, nil
}
