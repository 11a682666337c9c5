package containerd

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"text/template"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// libcniCache is where libcni keeps results, whatever the runtime's own
// folders are. In the test the folder is a tmpfs that nobody else sees.
const libcniCache = "/var/lib/cni"

// conflist is the file of a test's network, below containerd's folder.
const conflist = "cni/net.d/10-test.conflist"

// imageName is the one image of these tests: of the pods' sandboxes and of
// their containers.
const imageName = "berth.test/busybox:1"

// applets are the commands that containers run.
var applets = []string{"sh", "ip", "ping", "ping6", "sleep"}

// sleeper is what sandboxes and containers run: a long sleep.
var sleeper = []string{"/bin/sleep", "86400"}

// daemon is a containerd of a test's own: all that it writes lies below dir,
// and it lives in the test's namespaces.
type daemon struct {
	dir    string // on a real disk
	crictl string // program
	cgroup string // of all pods, below each hierarchy
}

// configuration is containerd 1.6's (version 2). The native snapshotter copies
// an image for each container, and works on every file system.
var configuration = template.Must(template.New("").Parse(`version = 2
root = "{{.Dir}}/root"
state = "{{.Dir}}/state"
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs", "io.containerd.tracing.processor.v1.otlp"]
[grpc]
  address = "{{.Dir}}/c.sock"
[ttrpc]
  address = "{{.Dir}}/t.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "{{.Dir}}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{{.Image}}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{{.Dir}}/cni/bin"
    conf_dir = "{{.Dir}}/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        BinaryName = "{{.Runc}}"
        SystemdCgroup = false
`))

// startDaemon starts containerd with a network configuration and the CNI
// plugins of some folders, and the image imageName. The test's end ends
// containerd, and whatever is left of its pods.
func startDaemon(t *testing.T, list string, plugins ...string) *daemon {
	t.Helper()
	d := newDaemon(t)
	d.network(t, list, append(plugins, filepath.Join(needs(t), "loopback")))
	d.serve(t)
	return d
}

// newDaemon returns a containerd that is configured, and has neither a network nor
// a plugin, as when its package was installed.
func newDaemon(t *testing.T) *daemon {
	t.Helper()
	d := &daemon{
		dir: t.TempDir(), crictl: filepath.Join(needs(t), "crictl"),
		cgroup: "/berth-test-" + strconv.Itoa(os.Getpid()),
	}
	adopt(t)
	t.Cleanup(func() { d.clear(t) })
	cacheOfItsOwn(t)
	runc, err := exec.LookPath("runc")
	must(t, err)
	var config bytes.Buffer
	must(t, configuration.Execute(&config, map[string]string{"Dir": d.dir, "Image": imageName, "Runc": runc}))
	d.write(t, map[string]string{"config.toml": config.String(), "crictl.yaml": "timeout: 60\n"})
	return d
}

// config is containerd's configuration.
func (d *daemon) config() string { return filepath.Join(d.dir, "config.toml") }

// serve starts containerd, and gives it the image imageName.
func (d *daemon) serve(t *testing.T) {
	t.Helper()
	log, err := os.Create(filepath.Join(d.dir, "containerd.log"))
	must(t, err)
	cmd := exec.Command("containerd", "--config", d.config())
	cmd.Stdout, cmd.Stderr = log, log
	must(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Signal(unix.SIGTERM)
		cmd.Wait()
		if t.Failed() {
			d.lastWords(t)
		}
	})
	nettest.Eventually(t, "containerd to serve", func() bool {
		return d.crictlCommand("info").Run() == nil
	})
	image := filepath.Join(d.dir, "image.tar")
	must(t, programs.Image{Name: imageName, Command: sleeper, Files: programs.Busybox(t, applets...)}.Write(image))
	load := exec.Command("ctr", "--address", d.dir+"/c.sock", "--namespace", "k8s.io",
		"images", "import", "--snapshotter", "native", image)
	if out, err := load.CombinedOutput(); err != nil {
		t.Fatalf("importing the image: %v\n%s", err, out)
	}
	nettest.Eventually(t, "the runtime to see the image", func() bool {
		return d.crictlCommand("inspecti", imageName).Run() == nil
	})
}

// needs ends the test where it cannot run, and returns the folder of crictl.
func needs(t *testing.T) (peers string) {
	t.Helper()
	programs.Root(t, "containerd needs the machine's own root")
	programs.Need(t, "containerd", "ctr", "runc", "busybox")
	return programs.Peers(t, "crictl", "loopback")
}

// network writes a network's configuration, and puts plugins into the one folder
// that containerd looks into.
func (d *daemon) network(t *testing.T, list string, plugins []string) {
	t.Helper()
	d.write(t, map[string]string{conflist: list})
	bin := filepath.Join(d.dir, "cni", "bin")
	must(t, os.MkdirAll(bin, 0o700))
	for _, p := range plugins {
		must(t, os.Symlink(p, filepath.Join(bin, filepath.Base(p))))
	}
}

// write writes files below containerd's folder.
func (d *daemon) write(t *testing.T, files map[string]string) {
	t.Helper()
	for name, content := range files {
		path := filepath.Join(d.dir, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o700))
		must(t, os.WriteFile(path, []byte(content), 0o600))
	}
}

// lastWords shows the end of containerd's log.
func (d *daemon) lastWords(t *testing.T) {
	raw, _ := os.ReadFile(filepath.Join(d.dir, "containerd.log"))
	lines := strings.Split(string(raw), "\n")
	t.Logf("containerd's last words:\n%s", strings.Join(lines[max(0, len(lines)-40):], "\n"))
}

// crictlCommand is crictl, talking to this containerd.
func (d *daemon) crictlCommand(args ...string) *exec.Cmd {
	return exec.Command(d.crictl, append([]string{"--config", d.dir + "/crictl.yaml",
		"--runtime-endpoint", "unix://" + d.dir + "/c.sock", "--image-endpoint", "unix://" + d.dir + "/c.sock"}, args...)...)
}

// run runs crictl and returns what it prints on standard output.
func (d *daemon) run(args ...string) (string, error) {
	begun := time.Now()
	var out, errs bytes.Buffer
	cmd := d.crictlCommand(args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("crictl %s, after %s: %w\n%s%s", strings.Join(args, " "), time.Since(begun).Round(time.Millisecond), err, out.String(), errs.String())
	}
	return strings.TrimSpace(out.String()), nil
}
