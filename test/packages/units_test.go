package packages

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// systemd takes the units of the package, which start the package's programs, and has no doubt about them.
func TestUnits(t *testing.T) {
	programs.Need(t, "dpkg-deb", "systemd-analyze")
	found, err := filepath.Glob(filepath.Join(programs.Tree(t), "bin", "packages", "0.0.1", "berth_*.deb"))
	must(t, err)
	if len(found) != 1 {
		programs.Missing(t, "a package is missing: run `make packages`")
	}
	dir := t.TempDir()
	if out, err := exec.Command("dpkg-deb", "-x", found[0], dir).CombinedOutput(); err != nil {
		t.Fatalf("dpkg-deb -x: %v\n%s", err, out)
	}
	units, err := filepath.Glob(filepath.Join(dir, "usr/lib/systemd/system/*.service"))
	must(t, err)
	if len(units) != 2 {
		t.Errorf("the package has the units %q", units)
	}
	for _, unit := range units {
		program := "/usr/bin/" + strings.TrimSuffix(filepath.Base(unit), ".service")
		raw, err := os.ReadFile(unit)
		must(t, err)
		here := strings.Replace(string(raw), "\nExecStart="+program+"\n", "\nExecStart="+dir+program+"\n", 1)
		if here == string(raw) {
			t.Errorf("%s does not start %s:\n%s", unit, program, raw)
		}
		here = strings.ReplaceAll(here, "=/bin/kill ", "=/bin/true ") // a minimal Debian has no procps
		must(t, os.WriteFile(unit, []byte(here), 0o644))
		if out, err := exec.Command("systemd-analyze", "verify", "--man=no", "--recursive-errors=no", unit).CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("systemd-analyze verify: %v\n%s", err, out)
		}
	}
	wants, err := filepath.Glob(filepath.Join(dir, "*", "systemd/system/*.wants"))
	must(t, err)
	if len(wants) > 0 {
		t.Errorf("the package enables units: %q", wants)
	}
}

// An upgrade restarts a runner that runs, and no other, before it restarts the agent, which asks the runner. A removal stops the
// runner when the agent's last releases, for which it runs plugins, are made. The installation does nothing with it.
func TestScriptsAndTheRunner(t *testing.T) {
	nettest.Need(t)
	must(t, os.MkdirAll("/run/systemd/system", 0o755)) // /run is the node's: sd_booted(3)
	t.Cleanup(func() { must(t, os.RemoveAll("/run/systemd")) })
	for _, c := range []struct{ script, args, order string }{
		{"postinst", "configure 0.0.1", "berth install --plugin-only, systemctl try-restart berth-runner.service, systemctl try-restart berthd.service"},
		{"postinst", "2", "berth install --plugin-only, systemctl try-restart berth-runner.service, systemctl try-restart berthd.service"},
		{"postinst", "configure", ""},
		{"prerm", "remove", "systemctl stop berthd.service, berthd --remove, systemctl stop berth-runner.service, systemctl --no-reload disable berthd.service berth-runner.service"},
		{"prerm", "upgrade 0.0.2", ""},
	} {
		dir := t.TempDir()
		log := filepath.Join(dir, "log")
		script, err := os.ReadFile("../../build/scripts/" + c.script)
		must(t, err)
		text := strings.NewReplacer("/var/lib/berth", filepath.Join(dir, "state"), "/etc/berth", filepath.Join(dir, "etc")).Replace(string(script))
		must(t, os.MkdirAll(filepath.Join(dir, "state"), 0o755), os.WriteFile(filepath.Join(dir, "state/instance"), nil, 0o644))
		for _, name := range []string{"berth", "berthd", "systemctl"} {
			must(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\necho "+name+" \"$@\" >>"+log+"\n"), 0o755))
		}
		cmd := exec.Command("/bin/sh", append([]string{"-c", text, "script"}, strings.Fields(c.args)...)...)
		cmd.Env = []string{"PATH=" + dir + ":" + os.Getenv("PATH")}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s %s: %v\n%s", c.script, c.args, err, out)
		}
		raw, err := os.ReadFile(log)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		calls := strings.Split(strings.TrimSpace(string(raw)), "\n")
		calls = slices.DeleteFunc(calls, func(call string) bool { return !slices.Contains(strings.Split(c.order, ", "), call) })
		if have := strings.Join(calls, ", "); have != c.order {
			t.Errorf("%s %s calls\n%s\nwant in this order: %s", c.script, c.args, raw, c.order)
		}
		if c.order == "" && strings.Contains(string(raw), "runner") {
			t.Errorf("%s %s calls\n%s", c.script, c.args, raw)
		}
	}
}
