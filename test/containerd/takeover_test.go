package containerd

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/api/client"
	"github.com/berth-net/berth/internal/nettest"
	berthroot "github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/test/programs"
)

// formerBridge is the bridge that the former CNI makes, and that stays without pods.
const formerBridge = "former0"

// containerd's network was bridge with host-local.
func TestTakeOverFromBridge(t *testing.T) {
	nettest.Need(t)
	takeOver(t, func(d *daemon) string {
		return fmt.Sprintf(`{"type":"bridge","bridge":%q,"isDefaultGateway":true,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.2.0.0/24"}],[{"subnet":"fd00:2::/64"}]]}}`, formerBridge)
	}, "bridge", "host-local")
}

// containerd's network was flannel's, whose plugin has bridge and host-local do the work and keeps what it told them.
func TestTakeOverFromFlannel(t *testing.T) {
	nettest.Need(t)
	flannel := filepath.Join(programs.Peers(t, "flannel"), "flannel")
	takeOver(t, func(d *daemon) string {
		d.write(t, map[string]string{"subnet.env": "FLANNEL_NETWORK=10.2.0.0/16\nFLANNEL_SUBNET=10.2.0.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"})
		must(t, os.MkdirAll(filepath.Join(d.dir, "cni/bin"), 0o700), os.Symlink(flannel, filepath.Join(d.dir, "cni/bin/flannel")))
		return fmt.Sprintf(`{"type":"flannel","subnetFile":"%s/subnet.env","dataDir":"%[1]s/flannel","delegate":{"bridge":%q,"isDefaultGateway":true}}`, d.dir, formerBridge)
	}, "bridge", "host-local")
}

// takeOver switches a containerd's network from another plugin's configuration to Berth, under running pods: these keep what they have,
// containerd's DELs of theirs, which Berth's plugin gets, give it back, and new pods are Berth's own. Nothing of either is left.
func takeOver(t *testing.T, former func(*daemon) string, plugins ...string) {
	needs(t)
	peers := programs.Peers(t, append(plugins, "loopback")...)
	bin, root := programs.Own(t), t.TempDir()
	d := newDaemon(t)
	paths := []string{filepath.Join(peers, "loopback"), filepath.Join(bin, "berth-cni")}
	for _, name := range plugins {
		paths = append(paths, filepath.Join(peers, name))
	}
	d.network(t, `{"cniVersion":"1.0.0","name":"former","plugins":[`+former(d)+`]}`, paths)
	cache := filepath.Join(root, libcniCache) // where an agent of this root looks
	must(t, os.MkdirAll(cache, 0o755), unix.Mount(libcniCache, cache, "", unix.MS_BIND, ""))
	t.Cleanup(func() { must(t, unix.Unmount(cache, unix.MNT_DETACH)) })
	d.serve(t)
	agent := programs.Run(t, bin, root, "default=10.88.0.0/16,fd88::/64")
	d.startRunner(t, bin, root)
	empty := nettest.Snapshot(t, nil).Without("conntrack") // the former bridge's own address has flows for a while
	old := d.newPods(3, 0)
	each(t, "running", old, (*pod).run)
	ring(t, old)

	d.write(t, map[string]string{"cni/net.d/10-test.conflist": fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "berth-cni", "root": %q}]}`, root)})
	nettest.Eventually(t, "containerd to have Berth as its network", func() bool {
		out, err := d.run("info")
		return err == nil && strings.Contains(out, "berth-cni")
	})
	out, err := exec.Command(filepath.Join(bin, "berth"), "--root", root, "adopt", "--bin-dir", filepath.Join(d.dir, "cni/bin")).CombinedOutput()
	if err != nil {
		t.Fatalf("berth adopt: %v\n%s", err, out)
	}
	asked := client.New(berthroot.Dir(root).Socket())
	defer asked.Close()
	if all, err := asked.List(t.Context(), api.Filter{}); err != nil || len(all) != len(old) {
		t.Fatalf("adopted are %+v, %v", all, err)
	}
	ring(t, old)
	must(t, agent.Kill(), agent.Start(t.Context()))
	ring(t, old)
	each(t, "stopping", old[:2], (*pod).stop)
	next := d.newPods(3, 0)
	for _, p := range next {
		p.name = "new-" + p.name
	}
	each(t, "running", next, (*pod).run)
	checkAddresses(t, next)
	ring(t, next)
	each(t, "ending", append(old, next...), func(p *pod) error { _, err := d.run("rmp", "-f", p.id); return err })
	nettest.Run(t, nil, "ip link del "+formerBridge)
	diff := ""
	for end := time.Now().Add(nettest.Deadline); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if diff = empty.Diff(nettest.Snapshot(t, nil).Without("conntrack")); diff == "" {
			break
		}
	}
	if diff != "" {
		t.Errorf("left behind after %s:\n%s", nettest.Deadline, diff)
	}
	agent.Audit(t)
	for _, where := range []string{libcniCache + "/networks/former/*.*", libcniCache + "/networks/former/*:*", libcniCache + "/results/*", d.dir + "/flannel/*"} {
		left, err := filepath.Glob(where)
		must(t, err)
		for _, path := range left {
			if !strings.HasPrefix(filepath.Base(path), "last_reserved_ip.") {
				t.Errorf("left is %s", path)
			}
		}
	}
}

// startRunner starts a berth-runner that executes the plugins of containerd's folder.
func (d *daemon) startRunner(t *testing.T, bin, root string) {
	t.Helper()
	cmd := exec.Command(filepath.Join(bin, "berth-runner"), "--root", root, "--bin-dir", filepath.Join(d.dir, "cni/bin"))
	cmd.Stderr = t.Output()
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	nettest.Eventually(t, "berth-runner's socket", func() bool { _, err := os.Stat(berthroot.Dir(root).RunnerSocket()); return err == nil })
}
