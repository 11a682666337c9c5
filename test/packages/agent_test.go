package packages

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/api/client"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/test/programs"
)

// agent is the berthd that Debian has installed. The test starts and stops berthd, because
// without systemd nobody else does.
type agent struct {
	debian
	cmd *exec.Cmd
}

// start starts the berthd that is installed now, and returns when it serves.
func (d debian) start() *agent {
	d.t.Helper()
	log, err := os.OpenFile(filepath.Join(d.t.TempDir(), "berthd.log"), os.O_CREATE|os.O_WRONLY, 0o600)
	must(d.t, err)
	a := &agent{d, d.command("/usr/bin/berthd")}
	a.cmd.Stdout, a.cmd.Stderr = log, log
	must(d.t, a.cmd.Start())
	d.t.Cleanup(func() {
		if a.cmd.ProcessState == nil {
			a.cmd.Process.Kill()
			a.cmd.Wait()
		}
		if raw, _ := os.ReadFile(log.Name()); d.t.Failed() {
			d.t.Logf("berthd said:\n%s", raw)
		}
	})
	c := client.New(root.Default.Socket()) // /run is the node's
	defer c.Close()
	nettest.Eventually(d.t, "berthd to serve", func() bool {
		h, err := c.Health(context.Background())
		return err == nil && h.Serving
	})
	return a
}

// stop is `systemctl stop berthd`.
func (a *agent) stop() {
	a.t.Helper()
	must(a.t, a.cmd.Process.Signal(unix.SIGTERM))
	must(a.t, a.cmd.Wait())
}

// debianBin is where Debian's containerd looks for plugins.
const debianBin = "/usr/lib/cni"

// containerd gives Debian the configuration of its package containerd, and nothing else of it.
func (d debian) containerd() {
	d.t.Helper()
	must(d.t, os.MkdirAll(d.dir+"/etc/containerd", 0o755))
	must(d.t, os.WriteFile(d.dir+"/etc/containerd/config.toml", []byte(`version = 2

[plugins]
  [plugins."io.containerd.grpc.v1.cri"]
    [plugins."io.containerd.grpc.v1.cri".cni]
      bin_dir = "/usr/lib/cni"
      conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.internal.v1.opt"]
    path = "/var/lib/containerd/opt"
`), 0o644))
}

// plugin runs the plugin that is in place for the runtime.
func (d debian) plugin(verb, container string, pod *ns.Netns) programs.Attached {
	d.t.Helper()
	bin := "/opt/cni/bin"
	if d.has(debianBin + "/berth-cni") {
		bin = debianBin
	}
	cmd := d.command(bin + "/berth-cni")
	cmd.Env = append(cmd.Env, programs.Plugin(bin, verb, container, pod.Ref().Path).Env...)
	cmd.Stdin = strings.NewReader(programs.Conf("/", `"name":"berth"`))
	raw, err := cmd.Output()
	if err != nil {
		d.t.Fatalf("%s of %s: %v: %s", verb, container, err, raw)
	}
	if verb != "ADD" {
		return programs.Attached{}
	}
	got, err := programs.ReadResult(raw)
	must(d.t, err)
	return got
}
