package hostile

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/test/programs"
)

// The ledger is lost, and somebody has taken away the routes to pods, or set their links down,
// while no agent ran. Pods have given their interfaces a victim's addresses, and an address that
// nobody has. `berthd --rebuild-ledger` does not believe these pods: each pod keeps its addresses. If
// the node knows no address of a pod, and other pods contradict that pod, that pod gets none.
func TestRebuildBelievesNoPod(t *testing.T) {
	for how, away := range map[string]func(pods []*pod){
		"nothing": func([]*pod) {},
		"no routes": func([]*pod) {
			nettest.Run(t, nil, "ip route flush proto 98")
			nettest.Run(t, nil, "ip -6 route flush proto 98")
		},
		"no IPv6 routes": func([]*pod) { nettest.Run(t, nil, "ip -6 route flush proto 98") },
		"links down": func(pods []*pod) {
			for _, p := range pods {
				nettest.Run(t, nil, "ip link set "+p.host+" down")
			}
		},
		"no alias, links down": func(pods []*pod) {
			for _, p := range pods {
				nettest.Run(t, nil, "ip link set "+p.host+" down alias somebody's")
			}
		},
		"no alias, no routes": func(pods []*pod) {
			for _, p := range pods {
				nettest.Run(t, nil, "ip link set "+p.host+" alias somebody's")
			}
			nettest.Run(t, nil, "ip route flush proto 98")
			nettest.Run(t, nil, "ip -6 route flush proto 98")
		},
	} {
		t.Run(how, func(t *testing.T) {
			n := newNode(t, plain)
			pods := append(n.adds("a", 4), n.add("victim"), n.add("b"))
			had := map[string][]string{}
			for _, at := range programs.List(t, n.API) {
				had[at.HostVeth] = at.Addresses
			}
			for _, liar := range pods[:4] { // some of whose links' names come before the victim's
				nettest.Run(t, liar.at, "ip addr add "+pods[4].ip4.String()+"/32 dev eth0")
				nettest.Run(t, liar.at, "ip addr add "+pods[4].ip6.String()+"/128 dev eth0 nodad")
				nettest.Run(t, liar.at, "ip addr add 10.88.5.5/32 dev eth0")
			}
			n.Crash()
			must(t, os.Remove(root.Dir(n.Root).Ledger()))
			away(pods)
			out, err := exec.Command(filepath.Join(n.bin, "berthd"), "--root", string(n.Root), "--rebuild-ledger").CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			n.Again()
			if how == "no alias, links down" { // the node knows nothing; a pod that others contradict has nothing
				for _, p := range pods[:5] {
					had[p.host] = nil
				}
			}
			for _, at := range programs.List(t, n.API) {
				if !slices.Equal(at.Addresses, had[at.HostVeth]) {
					t.Errorf("%s had %v, and has %v\n%s", at.HostVeth, had[at.HostVeth], at.Addresses, out)
				}
			}
			if !strings.HasPrefix(how, "no alias") { // nobody mends links without an alias (RELIABILITY.md)
				nettest.Ping(t, pods[5].at, pods[4].ip4)
				nettest.Ping(t, pods[5].at, pods[4].ip6)
			}
		})
	}
}
