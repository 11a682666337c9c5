package nad

import (
	"encoding/json"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/cni/netconf"
	"github.com/berth-net/berth/internal/cni/scan"
)

// Selection is one network that a pod asks for, and what the pod asks of the network.
type Selection struct {
	Namespace string // of the definition
	Name      string // of the definition
	Interface string // in the pod
	IPs       []IP
	MAC       net.HardwareAddr  // 6 bytes, or 20 for IP over InfiniBand; nil: not asked for
	GUID      net.HardwareAddr  // of InfiniBand: 8 bytes; nil: not asked for
	Ports     []netconf.Port    // of the node
	Bandwidth netconf.Bandwidth // the zero Bandwidth limits nothing
	DeviceID  string            // "": not asked for. It may contain '/'
	// Args is a JSON object for the key args.cni of each plugin; nil: not asked for.
	Args json.RawMessage
	// DefaultRoute is nil if the pod's default route is none of this network's. If it is not nil, the default
	// routes lead to these gateways by this network's interface, at most one of each family. If it is empty
	// and not nil, they are those that the network's plugins make.
	DefaultRoute []netip.Addr
	// IPAMClaim is the name of an IPAMClaim in the pod's namespace; "": not asked for. It excludes IPs.
	IPAMClaim string
}

// IP is a requested address.
type IP struct {
	Addr netip.Addr // unicast, without zone, and not IPv4 in IPv6
	Bits int        // length of the prefix; -1 if the pod asks for the address alone
}

// String writes an address as the pod asked for it.
func (ip IP) String() string {
	if ip.Bits < 0 {
		return ip.Addr.String()
	}
	return ip.Addr.String() + "/" + strconv.Itoa(ip.Bits)
}

// Pod is what a selection's defaults depend on.
type Pod struct {
	Namespace string
	Interface string // of the default network: what the runtime calls it, such as eth0
	// Before is how many networks each pod has between the default network and those of the annotation
	// (Multus's defaultNetworks). They are net1, net2 and so on.
	Before int
}

// Select reads the annotation KeyNetworks. An empty annotation asks for no network.
//
// An interface that the annotation does not name is net<N>: N is the place of its network among all networks
// of the pod, where the default network has place 0. So an interface with a name of its own changes no
// other's name (Multus numbers so).
func Select(annotation string, pod Pod) ([]Selection, *api.Error) {
	if annotation == "" {
		return nil, nil
	}
	selections, e := parse(annotation, pod.Namespace)
	if e == nil {
		e = nameInterfaces(selections, pod)
	}
	if e == nil {
		e = checkRoutes(selections)
	}
	if e != nil {
		return nil, invalid("annotation "+KeyNetworks, e)
	}
	return selections, nil
}

// SelectDefault reads the annotation KeyDefault of a pod that has it: one network in the place of the default
// one, whose interface has the name that the runtime says. The namespace of a definition without
// one is Multus's own (`multusNamespace`), not the pod's.
func SelectDefault(annotation, namespace, ifname string) (*Selection, *api.Error) {
	fail := func(e *api.Error) (*Selection, *api.Error) { return nil, invalid("annotation "+KeyDefault, e) }
	selections, e := parse(annotation, namespace)
	if e != nil {
		return fail(e)
	}
	if n := len(selections); n != 1 {
		return fail(cni.Errorf(cni.CodeConfig, "", "it has %d elements; expected one: a pod has one default network", n))
	}
	s := &selections[0]
	if s.Interface != "" && s.Interface != ifname {
		return fail(inElement(0, cni.ConfigError("interface", quoted(s.Interface), `the default network's, "`+ifname+`", which the runtime says`)))
	}
	s.Interface = ifname
	return s, nil
}

// inElement says which element of an annotation an error is about.
func inElement(i int, e *api.Error) *api.Error {
	return cni.Errorf(e.Code, e.Msg, "element %d: %s", i+1, e.Details)
}

// parse reads either form of an annotation. Interfaces stay without names unless they are given.
func parse(annotation, namespace string) ([]Selection, *api.Error) {
	if len(annotation) > maxText {
		return nil, tooLong(annotation)
	}
	var elements [][]byte
	one := parseShort
	if strings.ContainsAny(annotation, `[{"`) { // no name contains these
		var err error
		if elements, err = scan.Array([]byte(annotation)); err != nil {
			return nil, cni.Errorf(cni.CodeDecode, "", "it is not a JSON list of networks: %v", err)
		}
		one = parseElement
	} else {
		for element := range strings.SplitSeq(annotation, ",") {
			elements = append(elements, []byte(element))
		}
	}
	if len(elements) > MaxNetworks {
		return nil, cni.Errorf(cni.CodeConfig, "", "it has %d networks; expected at most %d", len(elements), MaxNetworks)
	}
	selections := make([]Selection, len(elements))
	for i, element := range elements {
		selections[i].Namespace = namespace
		if e := one(&selections[i], element); e != nil {
			return nil, inElement(i, e)
		}
	}
	return selections, nil
}

// parseShort reads [namespace/]name[@interface]. Blanks around each part do not count.
func parseShort(s *Selection, element []byte) *api.Error {
	const form = "[namespace/]name[@interface]"
	text := strings.TrimSpace(string(element))
	if !cni.IsShowable(text, len(text)) || strings.Count(text, "/") > 1 || strings.Count(text, "@") > 1 {
		return cni.ConfigError("it", quoted(text), form)
	}
	rest, ifname, named := strings.Cut(text, "@")
	namespace, name, spaced := strings.Cut(rest, "/")
	if !spaced {
		namespace, name = "", namespace
	}
	name, namespace, ifname = strings.TrimSpace(name), strings.TrimSpace(namespace), strings.TrimSpace(ifname)
	if spaced && namespace == "" || named && ifname == "" {
		return cni.ConfigError("it", quoted(text), form)
	}
	for _, part := range []struct{ key, text string }{{"name", name}, {"namespace", namespace}, {"interface", ifname}} {
		if e := s.setText(part.key, part.text); e != nil {
			return e
		}
	}
	return s.whole()
}

// nameInterfaces names the interfaces that have no names yet, and refuses a name that two have.
func nameInterfaces(selections []Selection, pod Pod) *api.Error {
	const others = "a default network's"
	has := map[string]string{pod.Interface: "the default network's"}
	for i := range pod.Before {
		has["net"+strconv.Itoa(i+1)] = others
	}
	for i := range selections {
		s, how := &selections[i], ""
		if s.Interface == "" {
			s.Interface, how = "net"+strconv.Itoa(pod.Before+i+1), " by its place"
		}
		if whose := has[s.Interface]; whose != "" {
			return inElement(i, cni.Errorf(cni.CodeConfig, "", "interface is %q%s; expected a name of its own: that one is %s", s.Interface, how, whose))
		}
		has[s.Interface] = "element " + strconv.Itoa(i+1) + "'s"
	}
	return nil
}

// checkRoutes refuses two default routes of one family. An empty list stands for both families.
func checkRoutes(selections []Selection) *api.Error {
	var whose [2]int // by family: the number of the element that has the default route; 0: none
	for i, s := range selections {
		if s.DefaultRoute == nil {
			continue
		}
		claims := [2]bool{len(s.DefaultRoute) == 0, len(s.DefaultRoute) == 0}
		for _, gateway := range s.DefaultRoute {
			claims[family(gateway)] = true
		}
		for f := range claims {
			if claims[f] && whose[f] != 0 {
				return inElement(i, cni.Errorf(cni.CodeConfig, "", "default-route is a second one for IPv%d; expected one: element %d has it already", 4+2*f, whose[f]))
			}
			if claims[f] {
				whose[f] = i + 1
			}
		}
	}
	return nil
}

// family is 0 for IPv4, and 1 for IPv6.
func family(ip netip.Addr) int {
	if ip.Is4() {
		return 0
	}
	return 1
}
