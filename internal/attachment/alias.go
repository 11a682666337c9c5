package attachment

import (
	"errors"
	"fmt"
	"strings"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/link"
)

// maxAlias is how many bytes a link's alias can have (IFALIASZ - 1).
const maxAlias = 255

// Alias is the stamp of a host veth, for people and for an agent that lost its
// ledger: instance, incarnation, and the key, cut off where the kernel's limit
// demands.
func Alias(instance string, id hold.ID, k Key) string {
	alias := fmt.Sprintf("berth %s %s %s", instance, id, k)
	return alias[:min(len(alias), maxAlias)]
}

// Stamp is what a host veth's alias says.
type Stamp struct {
	Instance string
	ID       hold.ID
	Key      Key
	// Short says that the alias is as long as one can be, so that the key may
	// lack its end.
	Short bool
}

// ParseAlias reads what Alias wrote, and nothing else.
func ParseAlias(alias string) (Stamp, error) {
	words := strings.SplitN(alias, " ", 4)
	if len(words) != 4 || words[0] != "berth" {
		return Stamp{}, fmt.Errorf("alias %.300q: not `berth INSTANCE ID KEY`", alias)
	}
	instance, err := hold.ParseID(words[1])
	if err != nil {
		return Stamp{}, fmt.Errorf("alias %.300q: instance: %w", alias, err)
	}
	id, err := hold.ParseID(words[2])
	if err != nil {
		return Stamp{}, fmt.Errorf("alias %.300q: %w", alias, err)
	}
	s := Stamp{Instance: string(instance), ID: id, Short: len(alias) == maxAlias}
	parts := strings.Split(words[3], "/")
	for i, to := range []*string{&s.Key.Network, &s.Key.ContainerID, &s.Key.Ifname} {
		if i < len(parts) {
			*to = parts[i]
		}
	}
	if Alias(s.Instance, id, s.Key) != alias || !s.Short && (len(parts) != 3 || s.Key.Ifname == "") {
		return Stamp{}, fmt.Errorf("alias %.300q: the key is not NETWORK/CONTAINER/IFNAME", alias)
	}
	return s, nil
}

// errStamp is why a link is left alone.
var errStamp = errors.New("the link is not that attachment's")

// CheckStamp compares what a deletion says, a key and the host veth of its
// incarnation, with the alias of the link of that name. nil is that the link is
// the one that is meant, of this or of another instance.
func CheckStamp(name, alias string, k Key) error {
	s, err := ParseAlias(alias)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", errStamp, err)
	case link.Name(s.Instance[:rtnl.PrefixLen], s.ID) != name:
		return fmt.Errorf("%w: its name is %s, and its alias %q", errStamp, name, alias)
	case Alias(s.Instance, s.ID, k) != alias:
		return fmt.Errorf("%w: its alias is %q, not that of %s", errStamp, alias, k)
	}
	return nil
}

// LinkID returns the incarnation whose host veth has a name; false for a name
// that is no host veth's.
func LinkID(name string) (hold.ID, bool) {
	if len(name) != 1+rtnl.PrefixLen+hold.IDLen || name[0] != 'b' {
		return "", false
	}
	id, err := hold.ParseID(name[1+rtnl.PrefixLen:])
	if _, bad := hold.ParseID(name[1 : 1+hold.IDLen]); err != nil || bad != nil {
		return "", false
	}
	return id, true
}
