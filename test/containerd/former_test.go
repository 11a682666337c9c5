package containerd

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/api/client"
	"github.com/berth-net/berth/internal/nettest"
	berthroot "github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/test/programs"
)

// former is a CNI that a containerd had before Berth.
type former struct {
	name    string // of its network
	plugins []string
	// list writes what the plugins need, and returns the version and the plugins of the network's configuration.
	list      func(*daemon) (version, plugins string)
	addresses func(*daemon) string      // folder of host-local's; nil: below libcni's
	lose      func(*testing.T, *daemon) // takes away what only ADD may need; nil: nothing
}

// ofBridge is bridge with host-local.
func ofBridge() former {
	return former{name: "bridge", plugins: []string{"bridge", "host-local"}, list: func(*daemon) (string, string) {
		return "1.0.0", `{"type":"bridge","bridge":"former0","isDefaultGateway":true,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.2.0.0/24"}],[{"subnet":"fd00:2::/64"}]]}}`
	}}
}

// install makes the CNI the network of a containerd. others are further programs for the folder of plugins. The test's end has the kernel forget
// all flows: nobody else forgets those of other CNIs' pods before the next test looks.
func (f former) install(t *testing.T, d *daemon, others ...string) {
	t.Helper()
	t.Cleanup(func() { must(t, netlink.ConntrackTableFlush(netlink.ConntrackTable)) })
	peers := programs.Peers(t, append(f.plugins, "loopback")...)
	paths := append(others, filepath.Join(peers, "loopback"))
	for _, name := range f.plugins {
		paths = append(paths, filepath.Join(peers, name))
	}
	version, plugins := f.list(d)
	d.network(t, fmt.Sprintf(`{"cniVersion":%q,"name":%q,"plugins":[%s]}`, version, f.name, plugins), paths)
}

// adopt has the agent adopt pods of the CNI, after a dry run that names them and the plugins, and adopts none.
func (f former) adopt(t *testing.T, d *daemon, bin, root string, pods []*pod) {
	t.Helper()
	_, list := f.list(d)
	var plugins []struct{ Type string }
	must(t, json.Unmarshal([]byte("["+list+"]"), &plugins))
	var types []string
	for _, p := range plugins {
		types = append(types, p.Type)
	}
	chain := strings.Join(types, ",")
	for _, step := range []struct {
		says string
		args []string
		has  int
	}{{"would be adopted", []string{"--dry-run"}, 0}, {"adopted", nil, len(pods)}} {
		args := append([]string{"--root", root, "adopt", "--bin-dir", filepath.Join(d.dir, "cni/bin")}, step.args...)
		raw, err := exec.Command(filepath.Join(bin, "berth"), args...).CombinedOutput()
		out := string(raw)
		if err != nil {
			t.Fatalf("berth adopt: %v\n%s", err, out)
		}
		for _, p := range pods {
			if !slices.ContainsFunc(strings.Split(out, "\n"), func(line string) bool {
				return strings.Contains(line, " "+step.says) && strings.Contains(line, "default/"+p.name) && strings.HasSuffix(strings.TrimSpace(line), chain)
			}) {
				t.Errorf("berth adopt %q does not say that %s, by %s, %s:\n%s", step.args, p.name, chain, step.says, out)
			}
		}
		if all := listed(t, root); len(all) != step.has {
			t.Fatalf("after berth adopt %q the agent has %+v", step.args, all)
		}
	}
}

// noFiles fails the test if there are files of pods of the CNI, or any in libcni's cache.
func (f former) noFiles(t *testing.T, d *daemon) {
	t.Helper()
	addresses := libcniCache + "/networks/" + f.name
	if f.addresses != nil {
		addresses = filepath.Join(f.addresses(d), f.name)
	}
	for _, where := range []string{addresses + "/*.*", addresses + "/*:*", libcniCache + "/results/*", d.dir + "/flannel/*"} {
		left, err := filepath.Glob(where)
		must(t, err)
		for _, path := range left {
			if !strings.HasPrefix(filepath.Base(path), "last_reserved_ip.") {
				t.Errorf("left is %s", path)
			}
		}
	}
}

// cacheAt puts libcni's cache where an agent of this root looks.
func cacheAt(t *testing.T, root string) {
	t.Helper()
	at := filepath.Join(root, libcniCache)
	must(t, os.MkdirAll(at, 0o755), unix.Mount(libcniCache, at, "", unix.MS_BIND, ""))
	t.Cleanup(func() { must(t, unix.Unmount(at, unix.MNT_DETACH)) })
}

// listed returns what the agent of a root has attached.
func listed(t *testing.T, root string) []api.Attachment {
	t.Helper()
	c := client.New(berthroot.Dir(root).Socket())
	defer c.Close()
	all, err := c.List(t.Context(), api.Filter{})
	must(t, err)
	return all
}

// look is nettest.Snapshot without what comes and goes by itself, such as the flows of a bridge's own address, and the routes that the kernel
// makes once it knows that nobody else has an address.
func look(t *testing.T) nettest.State {
	t.Helper()
	return nettest.Snapshot(t, nil).Without("conntrack").Deliberate()
}

// nothingLeft waits until the node is as it was.
func nothingLeft(t *testing.T, empty nettest.State) {
	t.Helper()
	diff := ""
	for end := time.Now().Add(nettest.Deadline); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if diff = empty.Diff(look(t)); diff == "" {
			return
		}
	}
	t.Errorf("left behind after %s:\n%s", nettest.Deadline, diff)
}

// hasNetwork waits until a plugin makes containerd's network.
func (d *daemon) hasNetwork(t *testing.T, plugin string) {
	t.Helper()
	nettest.Eventually(t, "containerd's network to be of "+plugin, func() bool {
		out, err := d.run("info")
		return err == nil && strings.Contains(out, plugin)
	})
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
