// Package strangers drives Berth's plugin with programs and libraries that
// know nothing of Berth: cnitool and libcni.
package strangers

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

func TestMain(m *testing.M) { programs.Main(m) }

var must = nettest.Must

// network is the name of the configuration that the tests use.
const network = "strangers"

// node is a node with an agent, and with nothing attached.
type node struct {
	bin   string // folder of Berth's programs
	agent *programs.Agent
	empty nettest.State
}

func newNode(t *testing.T) *node {
	t.Helper()
	nettest.Need(t)
	address(t)
	bin := programs.Own(t)
	agent := programs.Run(t, bin, t.TempDir(), "default=10.88.0.0/24,fd88::/64")
	return &node{bin: bin, agent: agent, empty: nettest.Snapshot(t, nil)}
}

// address gives the node addresses of its own, on lo: the node talks to pods
// from these addresses.
func address(t *testing.T) {
	t.Helper()
	nettest.Run(t, nil, "ip address replace 192.0.2.1/32 dev lo")
	nettest.Run(t, nil, "ip address replace 2001:db8::1/128 dev lo")
}

// conflist is a configuration of some spec version. Further keys of the plugin
// begin with a comma.
func (n *node) conflist(version, keys string) string {
	return fmt.Sprintf(`{"cniVersion": %q, "name": %q, "plugins": [{"type": "berth-cni", "root": %q%s}]}`,
		version, network, n.agent.Root, keys)
}

// reaches checks that the node reaches the addresses of a pod. Each address may
// have a prefix length.
func reaches(t *testing.T, addrs ...string) {
	t.Helper()
	for _, a := range addrs {
		bare, _, _ := strings.Cut(a, "/")
		nettest.Ping(t, nil, netip.MustParseAddr(bare))
	}
}

// addrsOf are the addresses of a result.
func addrsOf(r *current.Result) []netip.Addr {
	var all []netip.Addr
	for _, ip := range r.IPs {
		all = append(all, addrOf(ip))
	}
	return all
}

// addrOf is the address of a result's entry.
func addrOf(ip *current.IPConfig) netip.Addr {
	a, _ := netip.AddrFromSlice(ip.Address.IP)
	return a.Unmap()
}
