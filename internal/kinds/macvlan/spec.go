// Package macvlan is the kind of a pod's macvlan: an interface that the kernel creates right in the pod, and that
// shares a link of the node, its parent, with the node and with other macvlans. A hold of this kind includes the
// interface's addresses and routes, which disappear with it.
//
// The node itself sees nothing of a macvlan: no link of the node leads to it. So this kind enters the pod's network
// namespace for whatever it does or sees, and a glance does without (verify). What a macvlan needs ends by itself:
// the kernel deletes a macvlan with its namespace, and with its parent.
package macvlan

import (
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
const KindName = "macvlan"

// Spec says what a macvlan has to be like. Its maker chooses all of it before Acquire makes the macvlan.
type Spec struct {
	Alias     string         `json:"alias"` // says whose the macvlan is (Alias)
	Netns     ns.Ref         `json:"netns"`
	Ifname    string         `json:"ifname"`           // in the pod
	Parent    string         `json:"parent"`           // a link of the node, by its name
	Mode      string         `json:"mode"`             // in ip's words: bridge, private, vepa or passthru
	MTU       int            `json:"mtu,omitempty"`    // bytes; 0: the parent's when the macvlan is made
	MAC       string         `json:"mac,omitempty"`    // as ip link shows it; "" with passthru alone, where the parent's counts
	Addresses []netip.Prefix `json:"addresses"`        // the pod's, each with the length of its network's prefix
	Routes    []Route        `json:"routes,omitempty"` // besides those to the networks of the addresses
	// Bare says that the macvlan is made without addresses, and that another hold has them (IPs). Cut leaves it up: it has nothing by which
	// the owner could be reached, and an IPAM plugin may have to say by it that an address is given back.
	Bare bool `json:"bare,omitempty"`
}

// Route is a route of the pod by its macvlan.
type Route = inside.Route

// Kind returns KindName.
func (s *Spec) Kind() string { return KindName }

func (s *Spec) String() string {
	m, _ := parse(s.Alias)
	return fmt.Sprintf("macvlan %s of %s %s", s.Ifname, m.instance, m.owner)
}

// word begins the alias of a macvlan. It is another word than that of a host veth's alias (stamp.Alias), by which
// others know the veth of an owner wherever they see it.
const word = "berth-macvlan"

// Alias returns the alias of a macvlan, `berth-macvlan INSTANCE OWNER IFNAME WHOSE`. whose tells people whose the
// macvlan is, such as the attachment's key; the kernel's limit may cut off its end.
func Alias(instance string, owner hold.ID, ifname, whose string) string {
	alias := strings.Join([]string{word, instance, string(owner), ifname, whose}, " ")
	return alias[:min(len(alias), stamp.AliasLen)]
}

// mark is what an alias says.
type mark struct {
	instance string
	owner    hold.ID
	ifname   string
}

// parse reads an alias that Alias may have written; false for any other.
func parse(alias string) (mark, bool) {
	f := strings.SplitN(alias, " ", 5)
	if len(f) != 5 || f[0] != word || stamp.CheckID(f[1]) != nil || stamp.CheckID(f[2]) != nil || f[3] == "" {
		return mark{}, false
	}
	return mark{f[1], hold.ID(f[2]), f[3]}, true
}

// groups returns the link groups of the instance that made the spec.
func (s *Spec) groups() stamp.Groups {
	m, _ := parse(s.Alias)
	g, _ := stamp.GroupsOf(m.instance) // parse has checked the instance
	return g
}

// owns reports whether an interface in the pod is the macvlan of a spec, whatever its name is. It goes by the alias.
// A macvlan without an alias of Berth's is either half-made or has lost its alias: then its group and its MAC
// together show whose it is; in passthru, where it has the parent's MAC, its group and its name do. The group alone
// is that of all macvlans of the instance in the pod.
func (s *Spec) owns(m rtnl.Macvlan) bool {
	if m.Mode == 0 {
		return false
	}
	want, ok := parse(s.Alias)
	if has, marked := parse(m.Alias); marked || !ok {
		return ok && has == want
	}
	if !s.groups().Has(m.Group) {
		return false
	}
	if s.MAC == "" {
		return m.Name == s.Ifname
	}
	return m.MAC == s.MAC
}

// plan is a spec, checked and parsed.
type plan struct {
	*Spec
	mode rtnl.MacvlanMode
	mac  net.HardwareAddr
}

// check parses a spec. It refuses a spec that the kernel would refuse only after the macvlan is made, or would
// take for something else.
func (s *Spec) check() (plan, error) {
	p := plan{Spec: s}
	var ok bool
	if p.mode, ok = rtnl.ParseMacvlanMode(s.Mode); !ok {
		return p, fmt.Errorf("mode %.40q: want bridge, private, vepa or passthru", s.Mode)
	}
	if passthru := p.mode == rtnl.MacvlanPassthru; passthru != (s.MAC == "") {
		return p, fmt.Errorf("mode %s and MAC %.40q: want a MAC, and none with passthru, where the parent's counts", s.Mode, s.MAC)
	}
	if s.MAC != "" {
		mac, err := net.ParseMAC(s.MAC)
		if err != nil {
			return p, fmt.Errorf("the MAC: %w", err)
		}
		if len(mac) != 6 || mac.String() != s.MAC || mac[0]&1 != 0 {
			return p, fmt.Errorf("MAC %.40s: want 6 bytes of unicast, in lower case and with colons", s.MAC)
		}
		p.mac = mac
	}
	if strings.ContainsRune(s.Alias, 0) || len(s.Alias) > stamp.AliasLen {
		return p, fmt.Errorf("alias %.40q has %d bytes: want at most %d, and no NUL", s.Alias, len(s.Alias), stamp.AliasLen)
	}
	if s.Parent == "" {
		return p, fmt.Errorf("no parent")
	}
	return p, s.face().Check()
}
