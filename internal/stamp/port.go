package stamp

import "strings"

// A port is the node's end of a pod's link to a bridge of the node. Its name and its alias are those of a host veth but for their beginnings, and
// its groups are others: whoever looks for host veths, such as repairs, the agent's table and a rebuild, finds no ports, and
// whoever has to find both says so (ParseEnd, EndID).

// portWord begins the alias of a port. It is as long as the word of a host veth's alias, so that the same places of both aliases have the same.
const portWord = "bport"

// linkWord begins the alias of a host veth.
const linkWord = "berth"

// Port returns the name of an incarnation's port, of the same form and as unique as Link's.
func Port(instance string, id ID) string { return Ports(instance) + string(id) }

// Ports returns the beginning of the names of an instance's ports.
func Ports(instance string) string { return "p" + instance[:PrefixLen] }

// IsPort reports whether a name has the form of a port's.
func IsPort(name string) bool {
	return len(name) == LinkLen && name[0] == 'p' && areLetters(name[1:])
}

// IsEnd reports whether a name has the form of a host veth's or of a port's.
func IsEnd(name string) bool { return IsLink(name) || IsPort(name) }

// EndID returns the incarnation whose host veth or port has this name; false if the name is neither's.
func EndID(name string) (ID, bool) {
	if !IsEnd(name) {
		return "", false
	}
	return ID(name[1+PrefixLen:]), true
}

// PortAlias returns the alias of a port: that of a host veth (Alias), with another word in front.
func PortAlias(instance string, id ID, k Key, start int64, addrs ...string) string {
	return asPort(Alias(instance, id, k, start, addrs...))
}

func asPort(alias string) string { return portWord + alias[len(linkWord):] }

// ParsePort is Parse for an alias that PortAlias may have written.
func ParsePort(alias string) (Stamp, bool) {
	rest, ok := strings.CutPrefix(alias, portWord+" ")
	if !ok {
		return Stamp{}, false
	}
	s, ok := Parse(linkWord + " " + rest)
	s.port = ok
	return s, ok
}

// ParseEnd reads the alias of a host veth or of a port.
func ParseEnd(alias string) (Stamp, bool) {
	if s, ok := Parse(alias); ok {
		return s, true
	}
	return ParsePort(alias)
}

// PortGroups are the link groups of an instance's ports: 4 numbers that no other instance of the node has, below those of its host veths. They are
// not among Groups, because the rules by which the agent's table knows host veths are not about ports.
type PortGroups uint32

// The groups of all instances' ports are the 1 << 22 numbers from firstPortGroup.
const firstPortGroup = 1 << 29

// PortGroupsOf returns the groups of an instance's ports, given its id or the first 4 characters of it.
func PortGroupsOf(instance string) (PortGroups, error) {
	n, err := prefixNumber(instance)
	if err != nil {
		return 0, err
	}
	return PortGroups(firstPortGroup | n<<2), nil
}

// Live is the group of whole ports.
func (g PortGroups) Live() uint32 { return uint32(g) + liveGroup }

// Coming is the group that ports are born in.
func (g PortGroups) Coming() uint32 { return uint32(g) + comingGroup }

// Cut is the group of ports that are cut off.
func (g PortGroups) Cut() uint32 { return uint32(g) + cutGroup }

// Has reports whether group is one of the instance's ports'.
func (g PortGroups) Has(group uint32) bool { return group >= uint32(g) && group < uint32(g)+4 }

// IsWholePort reports whether an alias is that of a port, of any instance, and a link group none in which the port is half-made or cut off.
func IsWholePort(alias string, group uint32) bool {
	s, ok := ParsePort(alias)
	g, err := PortGroupsOf(s.Instance)
	return ok && err == nil && group != g.Coming() && group != g.Cut()
}

// IsComing reports whether a group is the one in which the instance of the stamp makes its host veths or, if the stamp is a port's, its ports.
func (s Stamp) IsComing(group uint32) bool {
	if s.port {
		g, err := PortGroupsOf(s.Instance)
		return err == nil && group == g.Coming()
	}
	g, err := GroupsOf(s.Instance)
	return err == nil && group == g.Coming()
}
