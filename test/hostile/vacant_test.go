package hostile

import (
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// A pod has something that takes the name net1: an interface, an interface that is too narrow
// for IPv4, or an alternative name. A runtime repeats the ADD of net1 more often than the pool
// has addresses. Another pod still gets an address.
func TestTakenNamesCostNoAddresses(t *testing.T) {
	for how, commands := range map[string][]string{
		"interface": {"ip link add net1 type veth peer name other"},
		"narrow":    {"ip link set lo down", "ip link set lo name net1", "ip link set net1 mtu 67"},
		"altname":   {"ip link property add dev lo altname net1"},
	} {
		t.Run(how, func(t *testing.T) {
			n := newNode(t, "sweepInterval: 1h\npools:\n- {name: default, cidrs: [10.88.0.0/29]}\n")
			a := n.add("a")
			for _, c := range commands {
				nettest.Run(t, a.at, c)
			}
			for range 8 {
				add := programs.Plugin(n.bin, "ADD", a.id, a.at.Ref().Path)
				add.Env = append(add.Env, "CNI_IFNAME=net1")
				add.Stdin = strings.NewReader(programs.Conf(n.Root))
				out, err := add.Output()
				if refusal := programs.Refusal(out, err, ""); refusal == nil || !strings.Contains(refusal.Error(), "interface exists in the pod") {
					t.Fatalf("ADD of net1: %v", refusal)
				}
			}
			n.add("innocent")
		})
	}
}
