package stamp

import (
	"fmt"
	"strings"
)

// ID names an incarnation of an owner: 50 random bits as 10 characters of lower-case base32
// (RFC 4648, section 6, without padding). It is minted when the owner is taken and never
// used again, so that a late release cannot hit a successor that has the same pod name,
// container id or address. An instance's id has the same form.
type ID string

const (
	// Letters are the characters of an ID, which stand for 0 to 31.
	Letters = "abcdefghijklmnopqrstuvwxyz234567"
	// IDLen is the number of characters in an ID.
	IDLen = 10
	// PrefixLen is how many characters of an instance's id go into link names, link
	// groups and metrics.
	PrefixLen = 4
	// LinkLen is the number of characters in a host veth's name: as many as the kernel
	// allows (IFNAMSIZ - 1).
	LinkLen = 1 + PrefixLen + IDLen
)

// value returns the number that a letter stands for, 0 to 31; -1 if c is no letter.
func value(c byte) int {
	switch {
	case c >= 'a' && c <= 'z':
		return int(c - 'a')
	case c >= '2' && c <= '7':
		return int(c-'2') + 26
	}
	return -1
}

// areLetters reports whether all characters of s are letters.
func areLetters(s string) bool {
	for i := range len(s) {
		if value(s[i]) < 0 {
			return false
		}
	}
	return true
}

// CheckID returns an error that says why s does not have the form of an ID; nil if it does.
func CheckID(s string) error {
	if len(s) != IDLen {
		return fmt.Errorf("id %.40q: want %d characters, have %d", s, IDLen, len(s))
	}
	for i := range len(s) {
		if value(s[i]) < 0 {
			return fmt.Errorf("id %q: character %q is not one of a-z, 2-7", s, s[i])
		}
	}
	return nil
}

// Link returns the name of an incarnation's host veth. No other incarnation, of this
// instance or of another one on this node, has that name. instance is an instance's id or
// the first 4 characters of it.
func Link(instance string, id ID) string { return Links(instance) + string(id) }

// Links returns the beginning of the names of an instance's host veths.
func Links(instance string) string { return "b" + instance[:PrefixLen] }

// IsLink reports whether a name has the form of a host veth's.
func IsLink(name string) bool {
	return len(name) == LinkLen && name[0] == 'b' && areLetters(name[1:])
}

// LinkID returns the incarnation whose host veth has this name; false if the name is no
// host veth's.
func LinkID(name string) (ID, bool) {
	if !IsLink(name) {
		return "", false
	}
	return ID(name[1+PrefixLen:]), true
}

// OfLink returns the first 4 characters of the id of the instance whose host veth has this
// name; false if the name is no host veth's.
func OfLink(name string) (instance string, ok bool) {
	if !IsLink(name) {
		return "", false
	}
	return name[1 : 1+PrefixLen], true
}

// AltName returns the second name of the host veth that ADD named link. Renaming the link
// does not change the second name. The second name is longer than a first name can be, so that it
// never stands in another link's way.
func AltName(link string) string { return altPrefix + link }

const altPrefix = "berth-"

// OfAltName returns the link whose AltName alt is; false if alt is no AltName.
func OfAltName(alt string) (link string, ok bool) {
	link, ok = strings.CutPrefix(alt, altPrefix)
	return link, ok && IsLink(link)
}

// Table returns the name of an instance's nftables table, in family inet.
func Table(instance string) string { return tablePrefix + instance }

const tablePrefix = "berth-"

// IsTable reports whether a name has the form of an instance's table.
func IsTable(name string) bool {
	_, ok := OfTable(name)
	return ok
}

// OfTable returns the instance whose table has a name; false if no instance's table can have it.
func OfTable(name string) (instance string, ok bool) {
	instance, ok = strings.CutPrefix(name, tablePrefix)
	return instance, ok && CheckID(instance) == nil
}

// Own returns the name that ADD gave a link of an instance, even if somebody has renamed
// the link since; false if the link is not the instance's. instance is an instance's id or
// the first 4 characters of it. Own trusts the alias more than the name, since a name is
// easily given to another link.
func Own(instance, name, alias string) (string, bool) {
	if s, ok := Parse(alias); ok {
		name = s.Link()
	}
	return name, strings.HasPrefix(name, Links(instance))
}

// Tunnel returns the name of an instance's VXLAN or WireGuard device. instance is an instance's id or the first 4 characters of it.
func Tunnel(instance string) string { return "berth-" + instance[:PrefixLen] }

// OfTunnel returns the first 4 characters of the id of the instance whose tunnel's device has such a name; false if no instance's has.
func OfTunnel(name string) (instance string, ok bool) {
	instance, ok = strings.CutPrefix(name, "berth-")
	return instance, ok && len(instance) == PrefixLen && areLetters(instance)
}

// InfoFile returns the name of an incarnation's device-info file. No other incarnation, of this instance or of another one on this node, has
// that name.
func InfoFile(instance string, id ID) string { return InfoFiles(instance) + string(id) }

// InfoFiles returns the beginning of the names of an instance's device-info files.
func InfoFiles(instance string) string { return "berth-" + instance + "-" }
