package cli

import (
	"slices"
	"testing"

	"github.com/berth-net/berth/internal/kinds/wireguard"
	"github.com/berth-net/berth/internal/node"
	"github.com/berth-net/berth/internal/node/nodetest"
)

// The CLI reads the specs of every kind that a node has.
func TestKinds(t *testing.T) {
	n, err := nodetest.New().Open(nil, nil)()
	if err == nil {
		err = n.Mark("aaaa", node.Hooks{})
	}
	must(t, err)
	all := append(n.Kinds().Names(), wireguard.DeviceKind, wireguard.PeerKind) // a node in memory has no WireGuard
	have, want := slices.Sorted(slices.Values(kinds.Names())), slices.Sorted(slices.Values(all))
	if !slices.Equal(have, want) {
		t.Errorf("the CLI reads %v, and a node has %v", have, want)
	}
}
