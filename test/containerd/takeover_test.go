package containerd

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// containerd's network was bridge with host-local.
func TestTakeOverFromBridge(t *testing.T) {
	takeOver(t, ofBridge())
}

// containerd's network was ptp, with the plugins behind it that lists usually have: they leave rules and devices of each pod on the node.
func TestTakeOverFromPtp(t *testing.T) {
	takeOver(t, former{name: "ptp", plugins: []string{"ptp", "host-local", "portmap", "firewall", "bandwidth"}, list: func(*daemon) (string, string) {
		return "1.0.0", `{"type":"ptp","ipMasq":true,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.2.0.0/24"}],[{"subnet":"fd00:2::/64"}]],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}},
			{"type":"portmap","snat":true,"capabilities":{"portMappings":true}},{"type":"firewall"},{"type":"bandwidth","capabilities":{"bandwidth":true}}`
	}})
}

// containerd's network was kindnet's, as kind's nodes have it: the list is of version 0.3.1, in which DEL gets no result, and host-local keeps
// addresses in a folder of its own.
func TestTakeOverFromKindnet(t *testing.T) {
	dir := func(d *daemon) string { return d.dir + "/cni-ipam-state" }
	takeOver(t, former{name: "kindnet", plugins: []string{"ptp", "host-local", "portmap"}, addresses: dir, list: func(d *daemon) (string, string) {
		return "0.3.1", fmt.Sprintf(`{"type":"ptp","ipMasq":false,"mtu":1500,"ipam":{"type":"host-local","dataDir":%q,"routes":[{"dst":"0.0.0.0/0"}],"ranges":[[{"subnet":"10.2.0.0/24"}]]}},
			{"type":"portmap","capabilities":{"portMappings":true}}`, dir(d))
	}})
}

// containerd's network was flannel's, whose plugin has bridge and host-local do the work and keeps what it told them. flanneld's file goes with
// flanneld, before the pods do.
func TestTakeOverFromFlannel(t *testing.T) {
	takeOver(t, former{name: "cbr0", plugins: []string{"flannel", "bridge", "host-local", "portmap"}, list: func(d *daemon) (string, string) {
		d.write(t, map[string]string{"subnet.env": "FLANNEL_NETWORK=10.2.0.0/16\nFLANNEL_SUBNET=10.2.0.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"})
		return "0.3.1", fmt.Sprintf(`{"type":"flannel","subnetFile":"%s/subnet.env","dataDir":"%[1]s/flannel","delegate":{"bridge":"former0","hairpinMode":true,"isDefaultGateway":true}},
			{"type":"portmap","capabilities":{"portMappings":true}}`, d.dir)
	}, lose: func(t *testing.T, d *daemon) { must(t, os.Remove(d.dir+"/subnet.env")) }})
}

// takeOver switches a containerd's network from another CNI to Berth, under running pods: these keep what they have, containerd's DELs of theirs,
// which Berth's plugin gets, give it back, and new pods are Berth's own. Nothing of either is left but what the former CNI keeps without pods.
func takeOver(t *testing.T, f former) {
	nettest.Need(t)
	needs(t)
	bin, root := programs.Own(t), t.TempDir()
	d := newDaemon(t)
	f.install(t, d, filepath.Join(bin, "berth-cni"))
	cacheAt(t, root)
	d.serve(t)
	before := d.newPods(1, 1) // what the former CNI keeps comes with its first pod
	before[0].port = 8090
	each(t, "running", before, (*pod).run)
	each(t, "ending", before, (*pod).end)
	agent := programs.Run(t, bin, root, "default=10.88.0.0/16,fd88::/64")
	d.startRunner(t, bin, root)
	empty := look(t)
	old := d.newPods(3, 0)
	for i, p := range old {
		p.port = 8080 + i
	}
	each(t, "running", old, (*pod).run)
	ring(t, old)

	d.write(t, map[string]string{conflist: fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "berth-cni", "root": %q}]}`, root)})
	d.hasNetwork(t, "berth-cni")
	held := look(t)
	f.adopt(t, d, bin, root, old)
	ring(t, old)
	must(t, agent.Kill(), agent.Start(t.Context()))
	ring(t, old)
	nettest.Same(t, held, look(t), "the node's state differs with pods adopted")
	if f.lose != nil {
		f.lose(t, d)
	}
	each(t, "stopping", old[:2], (*pod).stop)
	next := d.newPods(3, 0)
	for _, p := range next {
		p.name = "new-" + p.name
	}
	each(t, "running", next, (*pod).run)
	checkAddresses(t, next)
	ring(t, next)
	each(t, "ending", append(old, next...), (*pod).end)
	nothingLeft(t, empty)
	agent.Audit(t)
	f.noFiles(t, d)
}
