// Package stamp says which owner a thing on the node belongs to: by the name of a link or a table,
// by a link's alias and group, and by a route's metric and origin. All code that writes or
// reads one of these uses this package, the plugin's too: if two places differed, a
// deletion could hit the wrong pod.
//
// It imports the standard library alone, since the plugin links it.
package stamp

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Key is what the runtime calls an attachment (CNI 1.1, section 2, "Parameters"). It
// is reusable: only an ID is an incarnation.
type Key struct {
	Network     string `json:"network"`
	ContainerID string `json:"containerID"`
	Ifname      string `json:"ifname"`
}

// String joins the parts with slashes, which none of them may contain.
func (k Key) String() string { return k.Network + "/" + k.ContainerID + "/" + k.Ifname }

// AliasLen is the greatest length of a link's alias in bytes (IFALIASZ - 1).
const AliasLen = 255

// Alias returns the alias of a host veth, `berth INSTANCE ID KEY @START =ADDRESS,...`.
// The alias is for people, for an agent that has lost its ledger, and for a DEL that no agent answers.
// start is when the ADD began (CLOCK_BOOTTIME in nanoseconds), written in base 36; 0 means that the
// start is not known: the alias then has none. If the kernel's limit leaves no room for the start behind
// the key, the start comes first, `berth INSTANCE ID @START KEY`, and the limit cuts off the
// end of the key: without the start an old DEL would take the link for its own. The alias has
// the pod's addresses if there is room for all of them: when others take away the link's
// routes and neighbours, as the kernel does when the link goes down, the alias alone still
// tells the node what the pod has.
func Alias(instance string, id ID, k Key, start int64, addrs ...string) string {
	return withAddresses(withStart(named(instance, id, k), start), strings.Join(addrs, comma))
}

// Aliases returns the beginning of the aliases of all links whose names begin with prefix
// (see Links).
func Aliases(prefix string) string { return "berth " + prefix[1:] }

func withStart(alias string, start int64) string {
	if start <= 0 {
		return alias[:min(len(alias), AliasLen)]
	}
	behind := alias + atStart + strconv.FormatInt(start, startBase)
	if len(behind) < AliasLen {
		return behind
	}
	return startFirst(alias, start)
}

// startFirst puts a start in front of a key that is so long that the alias is full.
func startFirst(alias string, start int64) string {
	return (alias[:headLen] + atStart + digitsOf(start) + alias[headLen:])[:AliasLen]
}

// digitsOf returns a start with startLen digits, so that each start leaves equally much room for the
// key.
func digitsOf(start int64) string {
	digits := strconv.FormatInt(start, startBase)
	return strings.Repeat("0", startLen-len(digits)) + digits
}

// withAddresses adds addresses to an alias that has room for them. Such an alias is not
// full: of a full one nobody can tell whether the kernel has cut off its end.
func withAddresses(alias, addrs string) string {
	if addrs == "" || len(alias)+len(atAddresses)+len(addrs) >= AliasLen {
		return alias
	}
	return alias + atAddresses + addrs
}

// These are the texts before the start and before the addresses, the base in which the start is
// written, the number of digits of the greatest start, and the characters of addresses. atStart and
// atAddresses occur in no key: neither an interface's name in the kernel nor any other name in
// CNI has a space.
const (
	atStart     = " @"
	startBase   = 36
	startLen    = 13
	atAddresses = " ="
	inAddresses = "0123456789abcdef.:"
	comma       = ","
)

// headLen is the length of an alias in front of the space before its key.
const headLen = len("berth ") + IDLen + len(" ") + IDLen

// named returns an alias without its start, which may be longer than AliasLen.
func named(instance string, id ID, k Key) string {
	return "berth " + instance + " " + string(id) + " " + k.String()
}

// Stamp is what a host veth's alias says.
type Stamp struct {
	Instance string
	ID       ID
	// Start is when the ADD began (CLOCK_BOOTTIME in nanoseconds); 0 if the alias lacks the start
	// or a part of it, as full aliases of earlier versions did, with no start in front of the key.
	Start int64
	alias string // the alias without its start and its addresses
	addrs string
	short bool
	port  bool // the alias is a port's
}

// Parse reads an alias that Alias may have written; false for any other. It does not check
// the key: see Is and Key.
func Parse(alias string) (Stamp, bool) {
	words := strings.SplitN(alias, " ", 4)
	if len(words) != 4 || words[0] != "berth" || CheckID(words[1]) != nil || CheckID(words[2]) != nil {
		return Stamp{}, false
	}
	s := Stamp{Instance: words[1], ID: ID(words[2])}
	full := len(alias) == AliasLen
	if rest, start, ok := cutFirst(alias); full && ok {
		s.alias, s.Start, s.short = rest, start, true
		return s, true
	}
	if !full {
		alias, s.addrs = cutAddresses(alias)
	}
	s.alias, s.Start = cutStart(alias, full)
	s.short = full && len(s.alias) == len(alias)
	return s, true
}

// cutFirst takes the start off an alias that has it in front of its key.
func cutFirst(alias string) (rest string, start int64, ok bool) {
	digits, found := strings.CutPrefix(alias[headLen:], atStart)
	if !found || len(digits) <= startLen || digits[startLen] != ' ' {
		return "", 0, false
	}
	digits, key := digits[:startLen], digits[startLen:]
	start, err := strconv.ParseInt(digits, startBase, 64)
	if err != nil || start <= 0 || digitsOf(start) != digits {
		return "", 0, false
	}
	return alias[:headLen] + key, start, true
}

// cutAddresses takes the addresses off an alias, if it has any.
func cutAddresses(alias string) (rest, addrs string) {
	i := strings.LastIndex(alias, atAddresses)
	if i < 0 || strings.Trim(alias[i+len(atAddresses):], inAddresses+comma) != "" {
		return alias, ""
	}
	return alias[:i], alias[i+len(atAddresses):]
}

// cutStart takes the start off an alias that has one. The start of a full alias may lack
// its end, so it counts as not known.
func cutStart(alias string, full bool) (rest string, start int64) {
	if full && strings.HasSuffix(alias, atStart[:1]) {
		return alias[:len(alias)-1], 0
	}
	i := strings.LastIndex(alias, atStart)
	if i < 0 {
		return alias, 0
	}
	if full {
		return alias[:i], 0
	}
	digits := alias[i+len(atStart):]
	start, err := strconv.ParseInt(digits, startBase, 64)
	if err != nil || start <= 0 || strconv.FormatInt(start, startBase) != digits {
		return alias, 0
	}
	return alias[:i], start
}

// Since returns the alias with another start. A Short alias always gets a start that is known: 1 for 0.
func (s Stamp) Since(start int64) string {
	alias := withAddresses(withStart(s.alias, start), s.addrs)
	if s.short {
		alias = startFirst(s.alias, max(start, 1))
	}
	if s.port {
		return asPort(alias)
	}
	return alias
}

// Addresses returns the pod's addresses, as texts; nil if the alias has no addresses.
func (s Stamp) Addresses() []string {
	if s.addrs == "" {
		return nil
	}
	return strings.Split(s.addrs, comma)
}

// Alike reports whether two aliases are the same, apart from their starts, from addresses for which
// only one of the aliases had room, and from the end of a long key for which only one had room.
func Alike(a, b string) bool {
	if a == b {
		return true
	}
	x, ok := ParseEnd(a)
	y, also := ParseEnd(b)
	if !ok || !also || x.port != y.port || x.Instance != y.Instance || x.ID != y.ID || x.addrs != "" && y.addrs != "" && x.addrs != y.addrs {
		return false
	}
	return x.alias == y.alias || x.short && strings.HasPrefix(y.alias, x.alias) || y.short && strings.HasPrefix(x.alias, y.alias)
}

// Link returns the name that ADD gave the link.
func (s Stamp) Link() string {
	if s.port {
		return Port(s.Instance, s.ID)
	}
	return Link(s.Instance, s.ID)
}

// Is reports whether the alias is k's alias, as far as the alias goes (see Short).
func (s Stamp) Is(k Key) bool {
	text := named(s.Instance, s.ID, k)
	if s.Short() {
		return strings.HasPrefix(text, s.alias)
	}
	return text == s.alias
}

// Short reports whether the alias has the greatest length and its key last, so that the key
// may lack its end.
func (s Stamp) Short() bool { return s.short }

// Key returns the key or, if the alias is Short, as much of the key as the alias has.
func (s Stamp) Key() (k Key, err error) {
	words := strings.SplitN(s.alias, " ", 4)
	parts := strings.Split(words[len(words)-1], "/")
	for i, to := range []*string{&k.Network, &k.ContainerID, &k.Ifname} {
		if i < len(parts) {
			*to = parts[i]
		}
	}
	if !s.Is(k) || !s.Short() && (len(parts) != 3 || k.Ifname == "") {
		return Key{}, fmt.Errorf("alias %.300q: the key is not NETWORK/CONTAINER/IFNAME", s.alias)
	}
	return k, nil
}

// errElse says why a deletion leaves a link alone.
var errElse = errors.New("the link does not belong to the attachment")

// Check compares what a deletion names, a key and the name of its incarnation's host veth,
// with the alias of the link of that name. It returns nil if the deletion means that link, which may be a port, too. The link
// may be this instance's or another instance's.
func Check(name, alias string, k Key) error {
	s, ok := ParseEnd(alias)
	switch {
	case !ok:
		return fmt.Errorf("%w: its alias %.300q is not `berth INSTANCE ID KEY @START =ADDRESS,...`", errElse, alias)
	case s.Link() != name:
		return fmt.Errorf("%w: its name is %s, but its alias is %q", errElse, name, alias)
	case !s.Is(k):
		return fmt.Errorf("%w: its alias is %q, not that of %s", errElse, alias, k)
	}
	return nil
}
