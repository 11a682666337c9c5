// Package bridgeport is the kind of a pod's link to a bridge of the node: a veth pair, one end of which is in the pod, and the other, the port, in the
// node, as a port of the bridge. A hold of this kind includes everything that disappears with the pair: addresses and routes in the pod, and
// what the bridge knows of the port.
//
// The port is the pod's only way to the network, and the pod cannot reach it: so a cut sets the port down, and nothing in the pod undoes that. The
// agent's table knows nothing of ports, because the frames that a bridge passes on do not meet it.
package bridgeport

import (
	"crypto/sha256"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/inside"
	"github.com/berth-net/berth/internal/stamp"
)

// KindName is the name of the kind, in ledger records too.
const KindName = "bridgeport"

// Spec says what a port and the pod's end have to be like. Its maker chooses all of it before Acquire makes the pair.
type Spec struct {
	Name      string         `json:"name"`  // of the port: stamp.Port of instance and owner
	Alias     string         `json:"alias"` // of the port: says whose it is (stamp.PortAlias)
	Netns     ns.Ref         `json:"netns"`
	Ifname    string         `json:"ifname"` // of the pod's end
	Bridge    string         `json:"bridge"` // a link of the node, by its name
	Isolated  bool           `json:"isolated,omitempty"`
	Hairpin   bool           `json:"hairpin,omitempty"`
	MTU       int            `json:"mtu,omitempty"` // bytes, of the pod's end; 0: the bridge's when the pair is made
	MAC       string         `json:"mac"`           // of the pod's end, as ip link shows it: the only one by which the pod can send
	HostMAC   string         `json:"hostMAC"`       // of the port (HostMAC)
	Addresses []netip.Prefix `json:"addresses"`     // the pod's, each with the length of its network's prefix
	Routes    []Route        `json:"routes,omitempty"`
	// Bare says that the pod's end is made without addresses, and that another hold has them (IPs). Cut leaves the port up: the pod has nothing by which
	// it could be reached, and an IPAM plugin may have to say by its end that an address is given back.
	Bare bool `json:"bare,omitempty"`
}

// Route is a route of the pod by its end.
type Route = inside.Route

// Kind returns KindName.
func (s *Spec) Kind() string { return KindName }

func (s *Spec) String() string { return "bridge port " + s.Name }

// HostMAC returns the link-layer address of an owner's port, which follows from the owner's ID. It is greater than those that other links get: a
// bridge without an address of its own takes the lowest of its ports.
func HostMAC(id hold.ID) string {
	sum := sha256.Sum256([]byte("port " + string(id)))
	sum[0] = 0xfe // unicast, locally administered
	return net.HardwareAddr(sum[:6]).String()
}

// face returns what the pod's end has inside the pod.
func (s *Spec) face() inside.Face {
	return inside.Face{Ifname: s.Ifname, Addresses: s.Addresses, Routes: s.Routes}
}

// groups returns the link groups of the instance that made the spec.
func (s *Spec) groups() stamp.PortGroups {
	of, _ := stamp.ParsePort(s.Alias)
	g, _ := stamp.PortGroupsOf(of.Instance) // spec and Survey have checked the alias
	return g
}

// port returns how the bridge has to treat the port. The bridge passes frames of the pod only if they have the pod's MAC, and learns no other
// from them: a pod that could send by another's MAC would get what is meant for that pod. A pod is no switch: it has no say in the bridge's
// spanning tree.
func (s *Spec) port() rtnl.Port {
	return rtnl.Port{Hairpin: s.Hairpin, Isolated: s.Isolated, Locked: true, Guarded: true}
}

// owns reports whether a link is the port of a spec, whatever its name is. It goes by the alias. A port without an alias of Berth's is either
// half-made or has lost its alias: then its MAC shows whose it is, together with its name or its group.
func (s *Spec) owns(l rtnl.Link) bool {
	if of, stamped := stamp.ParseEnd(l.Alias); stamped {
		return of.Link() == s.Name
	}
	return l.Veth && s.HostMAC != "" && l.MAC == s.HostMAC && (l.Name == s.Name || s.groups().Has(l.Group))
}

// plan is a spec, checked and parsed.
type plan struct {
	*Spec
	mac, host net.HardwareAddr
}

// check parses a spec. It refuses a spec that the kernel would refuse only after the pair is made, or would take for something else.
func (s *Spec) check() (p plan, err error) {
	p.Spec = s
	for _, m := range []struct {
		text string
		to   *net.HardwareAddr
	}{{s.MAC, &p.mac}, {s.HostMAC, &p.host}} {
		mac, err := net.ParseMAC(m.text)
		if err != nil || len(mac) != 6 || mac.String() != m.text || mac[0]&1 != 0 {
			return p, fmt.Errorf("MAC %.40q: want 6 bytes of unicast, in lower case and with colons", m.text)
		}
		*m.to = mac
	}
	switch {
	case strings.ContainsRune(s.Alias, 0) || len(s.Alias) > stamp.AliasLen:
		return p, fmt.Errorf("alias %.40q has %d bytes: want at most %d, and no NUL", s.Alias, len(s.Alias), stamp.AliasLen)
	case s.Ifname == "":
		return p, fmt.Errorf("no interface name")
	case s.Bridge == "":
		return p, fmt.Errorf("no bridge")
	}
	return p, s.face().Check()
}
