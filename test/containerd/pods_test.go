// Package containerd tests Berth under Debian's containerd and runc, with real
// pods and containers, driven by crictl.
package containerd

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/berth-net/berth/api/client"
	"github.com/berth-net/berth/internal/nettest"
	berthroot "github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/test/programs"
)

func TestMain(m *testing.M) { programs.Main(m) }

var must = nettest.Must

// pods is how many run at once.
const pods = 10

func TestPods(t *testing.T) {
	nettest.Need(t)
	needs(t)
	bin, root := programs.Own(t), t.TempDir()
	conf := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "berth-cni", "root": %q, "capabilities": {"bandwidth": true}}]}`, root)
	d := startDaemon(t, conf, filepath.Join(bin, "berth-cni"))
	agent := programs.Run(t, bin, root, "default=10.88.0.0/16,fd88::/64")
	empty := nettest.Snapshot(t, nil)

	ps := d.newPods(pods, 0)
	each(t, "running", ps, (*pod).run)
	checkAddresses(t, ps)
	for _, at := range programs.List(t, client.New(berthroot.Dir(root).Socket())) {
		if b := at.Bandwidth; b == nil || b.IngressRate != 100_000_000 || b.IngressBurst != b.IngressRate/10 || b.EgressRate != 50_000_000 || b.EgressBurst != b.EgressRate/10 {
			t.Errorf("%s is limited to %+v, which is not what its annotations say", at.HostVeth, b)
		}
	}
	each(t, "looking into", ps, (*pod).seesItself)
	ring(t, ps)

	// Running pods do not need the agent, and the agent finds everything again.
	must(t, agent.Kill())
	ring(t, ps)
	must(t, agent.Start(t.Context()))
	ring(t, ps)

	each(t, "stopping", ps[:3], (*pod).stop)
	each(t, "stopping again", ps[:3], (*pod).stop)

	// Pods that end while the agent is away end once it is back, at the latest.
	must(t, agent.Stop())
	for _, p := range ps[3:5] {
		if err := p.stop(); err != nil {
			t.Logf("with the agent away: %v", err)
		}
	}
	must(t, agent.Start(t.Context()))
	each(t, "stopping", ps, (*pod).stop)
	each(t, "removing", ps, (*pod).remove)
	agent.NothingLeft(t, empty)

	// Their successors have the same names and other addresses.
	next := d.newPods(pods, 1)
	each(t, "running again", next, (*pod).run)
	checkAddresses(t, append(ps, next...))
	ring(t, next)
	each(t, "ending at once", next, func(p *pod) error { _, err := d.run("rmp", "-f", p.id); return err })
	agent.NothingLeft(t, empty)
}

// checkAddresses checks that every pod has an address of each family, and that
// none was given out twice.
func checkAddresses(t *testing.T, ps []*pod) {
	t.Helper()
	owner := make(map[netip.Addr]*pod)
	for _, p := range ps {
		if len(p.addrs) != 2 || !p.addrs[0].Is4() || !p.addrs[1].Is6() {
			t.Errorf("%s has the addresses %v, not one of each family", p.name, p.addrs)
		}
		for _, a := range p.addrs {
			if o := owner[a]; o != nil {
				t.Errorf("%s has %s, which %s had", p.name, a, o.name)
			}
			owner[a] = p
		}
	}
}

// ring checks that every pod reaches the next one.
func ring(t *testing.T, ps []*pod) {
	t.Helper()
	next := make(map[*pod]*pod)
	for i, p := range ps {
		next[p] = ps[(i+1)%len(ps)]
	}
	each(t, "pinging from", ps, func(p *pod) error { return p.reaches(next[p]) })
}
