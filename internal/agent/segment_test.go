package agent

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
)

// Addresses of a machine of the segment that the node's link "uplink" leads to.
var (
	lan4 = netip.MustParseAddr("192.0.2.254")
	lan6 = netip.MustParseAddr("2001:db8::fe")
)

// segmentFile is the configuration of an agent whose pool "lan" has addresses of that segment, beside the pool "default".
const segmentFile = `
pools:
- {name: default, cidrs: [10.88.0.0/24]}
- {name: lan, cidrs: [192.0.2.64/28, "2001:db8::40/124"], segment: {subnets: [192.0.2.0/24, "2001:db8::/64"], gateways: [192.0.2.254]}}
`

// segmented is a node with a link to a segment.
type segmented struct {
	*rig
	lan *ns.Netns // of the machine
}

// startSegmented starts an agent on a node with a link to a segment. first are commands for the node before that.
func startSegmented(t *testing.T, file string, first ...string) *segmented {
	t.Helper()
	s := &segmented{rig: newRig(t), lan: newSegment(t)}
	s.rig.pools = nil
	must(t, os.MkdirAll(filepath.Dir(s.root.Config()), 0o755))
	s.configure(file)
	for _, line := range first {
		s.onNode(line)
	}
	s.begin()
	return s
}

// newSegment makes the node's link to a segment, and returns the machine.
func newSegment(t *testing.T) (lan *ns.Netns) {
	t.Helper()
	nettest.Need(t)
	lan = nettest.Node(t)
	nettest.Run(t, nil, fmt.Sprintf("ip link add uplink type veth peer name lan netns %s", lan.Ref().Path))
	t.Cleanup(func() { nettest.Run(t, nil, "ip link del uplink") })
	nettest.Run(t, nil, "ip link set uplink addrgenmode none")
	nettest.Run(t, lan, fmt.Sprintf("ip addr add %s/24 dev lan", lan4))
	nettest.Run(t, lan, fmt.Sprintf("ip addr add %s/64 dev lan nodad", lan6))
	nettest.Run(t, lan, "ip link set lan up")
	nettest.Run(t, nil, "ip link set uplink up")
	nettest.Run(t, lan, "ip link show lan") // brings its carrier up to date
	nettest.Run(t, nil, "ip link show uplink")
	return lan
}

func (s *segmented) configure(file string) {
	s.t.Helper()
	must(s.t, os.WriteFile(s.root.Config(), []byte(file), 0o644))
}

// onNode executes a command on the node.
func (s *segmented) onNode(line string) {
	s.t.Helper()
	nettest.Run(s.t, nil, line)
}
