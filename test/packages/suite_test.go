package packages

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/berth-net/berth/conform"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// The image of the suite judges a plugin in a privileged container, which has nothing but the image and the plugin's folder.
func TestSuiteImage(t *testing.T) {
	nettest.Need(t)
	d, entrypoint := unpacked(t, "cni-conform")
	if out, err := d.command(entrypoint, "--version").CombinedOutput(); err != nil || string(out) != "cni-conform version "+conform.Version+"\n" {
		t.Fatalf("%s --version says %q: %v", entrypoint, out, err)
	}
	programs.Need(t, "runc")
	programs.Root(t, "only root can make a privileged container")
	plugins := t.TempDir()
	build := exec.Command("go", "build", "-buildvcs=false", "-o", plugins+"/", "github.com/berth-net/berth/conform/planted")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the planted plugin: %v\n%s", err, out)
	}
	must(t, os.WriteFile(filepath.Join(plugins, "net.conflist"), []byte(`{"cniVersion": "1.1.0", "name": "net", "plugins":
		[{"type": "planted", "subnet": "10.8.0.0/25", "stateDir": "/var/lib/cni"}]}`), 0o644))
	out, err := d.privileged(plugins, entrypoint, "--bin-dir", "/plugins", "--conf", "/plugins/net.conflist", "--run", "^basic/|^leak/add-del$")
	if err != nil || !strings.Contains(out, "0 fail, 0 leak, 3 pass, 0 unsupported") {
		t.Errorf("in a container: %v\n%s", err, out)
	}
}

// privileged runs a command of an image as `docker run --privileged --volume FOLDER:/plugins:ro IMAGE` does, and returns what it prints.
func (d debian) privileged(folder string, command ...string) (string, error) {
	d.t.Helper()
	bundle := d.t.TempDir()
	if out, err := exec.Command("runc", "spec", "--bundle", bundle).CombinedOutput(); err != nil {
		d.t.Fatalf("runc spec: %v\n%s", err, out)
	}
	file := filepath.Join(bundle, "config.json")
	raw, err := os.ReadFile(file)
	must(d.t, err)
	var spec map[string]any // OCI runtime specification 1.0
	must(d.t, json.Unmarshal(raw, &spec))
	process, linux := spec["process"].(map[string]any), spec["linux"].(map[string]any)
	process["terminal"], process["args"], process["noNewPrivileges"] = false, command, false
	all := map[string]any{}
	for _, set := range []string{"bounding", "effective", "permitted"} {
		all[set] = capabilities(d.t)
	}
	process["capabilities"] = all
	spec["root"] = map[string]any{"path": d.dir}
	for _, key := range []string{"maskedPaths", "readonlyPaths", "resources"} {
		delete(linux, key)
	}
	spec["mounts"] = append(spec["mounts"].([]any), map[string]any{"destination": "/plugins", "type": "bind", "source": folder, "options": []string{"rbind", "ro"}})
	raw, err = json.Marshal(spec)
	must(d.t, err)
	must(d.t, os.WriteFile(file, raw, 0o644))
	out, err := exec.Command("runc", "--root", d.t.TempDir(), "run", "--bundle", bundle, "berth-suite-"+strconv.Itoa(os.Getpid())).CombinedOutput()
	return string(out), err
}

// capabilities returns the names of the first 41 capabilities (capabilities(7), up to CAP_CHECKPOINT_RESTORE) that this process may give.
func capabilities(t *testing.T) (names []string) {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	must(t, err)
	_, after, _ := strings.Cut(string(status), "\nCapBnd:\t")
	line, _, _ := strings.Cut(after, "\n")
	mask, err := strconv.ParseUint(line, 16, 64)
	must(t, err)
	for i, name := range strings.Fields(`CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE
		NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN
		SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG
		WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE`) {
		if mask>>i&1 == 1 {
			names = append(names, "CAP_"+name)
		}
	}
	return names
}
