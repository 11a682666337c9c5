// Package stamp says whose a thing on the node is: what a link or a table is called,
// what a link's alias says, which group it is in, which metric and origin a route has. Whoever
// writes or reads one of these does it by this package, the plugin too: where two of
// them differed, a deletion would meet the wrong pod.
//
// It imports the standard library alone, since the plugin links it.
package stamp

import (
	"errors"
	"fmt"
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

// AliasLen is how many bytes a link's alias has at most (IFALIASZ - 1).
const AliasLen = 255

// Alias is the alias of a host veth, `berth INSTANCE ID KEY`, for people and for an
// agent that lost its ledger. The kernel's limit may cut off the end of the key.
func Alias(instance string, id ID, k Key) string {
	alias := "berth " + instance + " " + string(id) + " " + k.String()
	return alias[:min(len(alias), AliasLen)]
}

// Stamp is what a host veth's alias says.
type Stamp struct {
	Instance string
	ID       ID
	alias    string
}

// Parse reads an alias that Alias may have written; false for any other. What it says
// of the key is for Is and Key.
func Parse(alias string) (Stamp, bool) {
	words := strings.SplitN(alias, " ", 4)
	if len(words) != 4 || words[0] != "berth" || CheckID(words[1]) != nil || CheckID(words[2]) != nil {
		return Stamp{}, false
	}
	return Stamp{Instance: words[1], ID: ID(words[2]), alias: alias}, true
}

// Link is the name that ADD gave the link.
func (s Stamp) Link() string { return Link(s.Instance, s.ID) }

// Is reports whether the alias is that of a key, as far as it goes (see Short).
func (s Stamp) Is(k Key) bool { return Alias(s.Instance, s.ID, k) == s.alias }

// Short reports whether the alias is as long as one can be, so that its key may lack
// an end.
func (s Stamp) Short() bool { return len(s.alias) == AliasLen }

// Key reads the key, or as much of it as the alias of a Short one has.
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

// errElse is why a link is left alone.
var errElse = errors.New("the link is not that attachment's")

// Check compares what a deletion says, a key and the host veth of its incarnation,
// with the alias of the link of that name. nil is that the link is the one that is
// meant, of this or of another instance.
func Check(name, alias string, k Key) error {
	s, ok := Parse(alias)
	switch {
	case !ok:
		return fmt.Errorf("%w: its alias %.300q is not `berth INSTANCE ID KEY`", errElse, alias)
	case s.Link() != name:
		return fmt.Errorf("%w: its name is %s, and its alias %q", errElse, name, alias)
	case !s.Is(k):
		return fmt.Errorf("%w: its alias is %q, not that of %s", errElse, alias, k)
	}
	return nil
}
