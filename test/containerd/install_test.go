package containerd

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// A containerd has nothing but its own configuration, as Debian's has, and runs. "berth install" is
// all that this containerd needs to run pods, without the reference plugins. "berth uninstall" leaves
// nothing of what install made.
func TestInstall(t *testing.T) {
	nettest.Need(t)
	d := newDaemon(t)
	bin, root := programs.Own(t), t.TempDir()
	d.serve(t)
	agent := programs.Run(t, bin, root, "default=10.88.0.0/16,fd88::/64")
	empty := nettest.Snapshot(t, nil)
	berth := func(args ...string) string {
		t.Helper()
		out, err := exec.Command(filepath.Join(bin, "berth"), append([]string{"--root", root}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("berth %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	said := berth("install", "--runtime", "containerd="+d.config())
	for _, want := range []string{"bin_dir in " + d.config(), "conf_dir in " + d.config(), d.dir + "/cni/bin/loopback"} {
		if !strings.Contains(said, want) {
			t.Errorf("berth install does not say %q:\n%s", want, said)
		}
	}
	nettest.Eventually(t, "containerd to see its network", func() bool { return d.networkReady(t) })

	ps := d.newPods(3, 0)
	each(t, "running", ps, (*pod).run)
	checkAddresses(t, ps)
	each(t, "looking into", ps, (*pod).seesItself)
	ring(t, ps)
	each(t, "asking lo of", ps, func(p *pod) error { _, err := p.exec("ping", "-c", "1", "-w", "10", "127.0.0.1"); return err })
	each(t, "ending", ps, func(p *pod) error { _, err := d.run("rmp", "-f", p.id); return err })
	agent.NothingLeft(t, empty)

	berth("uninstall")
	for _, path := range []string{"cni/bin", "cni/net.d/10-berth.conflist"} {
		if _, err := os.Lstat(filepath.Join(d.dir, path)); err == nil {
			t.Errorf("berth uninstall leaves %s", path)
		}
	}
}

// networkReady reports whether containerd has a network for pods.
func (d *daemon) networkReady(t *testing.T) bool {
	t.Helper()
	out, err := d.run("info")
	must(t, err)
	var info struct {
		Status struct {
			Conditions []struct {
				Type   string
				Status bool
			}
		}
	}
	must(t, json.Unmarshal([]byte(out), &info))
	for _, c := range info.Status.Conditions {
		if c.Type == "NetworkReady" {
			return c.Status
		}
	}
	return false
}
