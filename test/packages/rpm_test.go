package packages

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// rpm runs the machine's rpm on the Debian, which has no rpm of its own. Scripts run in the
// Debian. rpm knows no package there that provides /bin/sh, which the scripts need: hence --nodeps.
func (d debian) rpm(args ...string) string {
	d.t.Helper()
	out, err := d.tryRPM(args...)
	if err != nil {
		d.t.Fatalf("rpm %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

func (d debian) tryRPM(args ...string) (said string, err error) {
	out, err := exec.Command("rpm", append([]string{"--root", d.dir, "--nodeps"}, args...)...).CombinedOutput()
	return string(out), err
}

// An rpm does what a deb does: install, upgrade under a pod, stay as long as the pod, go.
func TestRPM(t *testing.T) {
	programs.Need(t, "rpm")
	d := newDebian(t)
	former, next := d.dir+d.bring("0.0.1", "berth-*.rpm"), d.dir+d.bring("0.0.2", "berth-*.rpm")
	d.must("mkdir -p /opt/cni/bin /etc/cni/net.d")
	d.must("mkdir -p /usr/share/fish/vendor_completions.d /usr/share/zsh/site-functions") // Fedora's filesystem has them
	files, node := d.files(), nettest.Snapshot(t, nil).Without("sysctl")
	says := func(said string, want ...string) {
		t.Helper()
		for _, w := range want {
			if !strings.Contains(said, w) {
				t.Errorf("rpm does not say %q:\n%s", w, said)
			}
		}
	}

	says(d.rpm("-i", former), "nothing is started yet")
	nettest.Same(t, node, nettest.Snapshot(t, nil).Without("sysctl"), "rpm -i changed the node")
	a := d.start()
	d.must("berth install")
	d.must("sed -i 's/^#logLevel: info/logLevel: debug/' /etc/berth/berthd.yaml")
	pod := nettest.Pod(t)
	talk := programs.Converse(t, pod, d.plugin("ADD", "c1", pod))
	says(d.rpm("-U", next), "/opt/cni/bin/berth-cni", "restart berthd")
	d.same("/usr/bin/berth-cni", "/opt/cni/bin/berth-cni")
	d.must("grep '^logLevel: debug' /etc/berth/berthd.yaml")
	a.stop()
	a = d.start()
	d.must("berth version", "berth v0.0.2", "berthd v0.0.2")
	talk.GoesOn("after the upgrade")

	a.stop()
	said, err := d.tryRPM("-e", "berth")
	if err == nil {
		t.Error("rpm -e went on while a pod was attached")
	}
	says(said, "1 pod attached (container c1)", "nothing is changed")
	d.must("berthd --version && test -e /opt/cni/bin/berth-cni")
	t.Setenv("BERTH_REMOVE_ANYWAY", "1")
	says(d.rpm("-e", "berth"), "1 pod attached (container c1)", "stay")
	t.Setenv("BERTH_REMOVE_ANYWAY", "")
	talk.GoesOn("without the package")
	says(d.rpm("-i", former), "/opt/cni/bin/berth-cni", "no agent runs")
	d.same("/usr/bin/berth-cni", "/opt/cni/bin/berth-cni")
	d.must("mv /etc/berth/berthd.yaml.rpmsave /etc/berth/berthd.yaml")
	a = d.start()
	d.plugin("DEL", "c1", pod)
	a.stop()
	says(d.rpm("-e", "berth"), "/opt/cni/bin/berth-cni")
	nettest.Delete(t, pod)
	readme, err := os.ReadFile(filepath.Join(programs.Tree(t), "README.md"))
	must(t, err)
	typed := regexp.MustCompile("`rpm -e berth` does what `dpkg -r` does, and leaves the state and an edited configuration:\n`(rm [^`]*)`").FindSubmatch(readme)
	if typed == nil {
		t.Fatal("README.md does not say any more what to remove after rpm -e berth")
	}
	d.must(string(typed[1]))
	nettest.Same(t, files, d.files(), "rpm -e left files")
	nettest.Same(t, node, nettest.Snapshot(t, nil).Without("sysctl"), "rpm -e left the node changed")
}

// Both packages have the same files and scripts, and zsh's completion where each
// distribution has it.
func TestContents(t *testing.T) {
	programs.Need(t, "rpm", "dpkg-deb")
	list := func(line string) string {
		t.Helper()
		cmd := exec.Command("sh", "-euc", line)
		cmd.Dir = filepath.Join(programs.Tree(t), "bin", "packages", "0.0.1")
		out, err := cmd.Output()
		if err != nil {
			programs.Missing(t, line+" fails: run `make packages`")
		}
		return string(out)
	}
	// Each line is mode, size and path.
	deb := list(`dpkg-deb -c berth_*.deb | awk '/^-/ { sub("^[.]", "", $6); print $1, $3, $6 }' | sort`)
	rpm := list(`rpm -qp --qf '[%{FILEMODES:perms} %{FILESIZES} %{FILENAMES}\n]' berth-*.rpm | grep ^- | sort`)
	rpm = strings.Replace(rpm, "/zsh/site-functions/", "/zsh/vendor-completions/", 1)
	// The deb has a copy of the configuration, of which postinst makes the configuration.
	rpm = strings.Replace(rpm, " /etc/berth/berthd.yaml", " /usr/share/berth/berthd.yaml", 1)
	if deb != rpm {
		t.Errorf("the deb has\n%s\nand the rpm\n%s", deb, rpm)
	}
	for _, want := range []string{"-rwxr-xr-x [0-9]+ /usr/bin/berth-cni", "-rw-r--r-- [0-9]+ /usr/lib/systemd/system/berthd.service",
		"-rwxr-xr-x [0-9]+ /usr/bin/berth-runner", "-rw-r--r-- [0-9]+ /usr/lib/systemd/system/berth-runner.service",
		"-rw-r--r-- [0-9]+ /usr/share/berth/berthd.yaml", "-rw-r--r-- [0-9]+ /usr/share/man/man8/berthd.8.gz",
		"-rw-r--r-- [0-9]{5,} /usr/share/doc/berth/LICENSES.modules", "-rw-r--r-- [0-9]{4,} /usr/share/doc/berth/examples/berth.rules.yaml",
		"-rw-r--r-- [0-9]{5,} /usr/share/doc/berth/docs/RELIABILITY.md",
		"-rw-r--r-- [0-9]{5,} /usr/share/doc/berth/examples/berth.dashboard.json",
		"-rw-r--r-- [0-9]{4,} /usr/share/doc/berth/examples/berth-operator.rules.yaml"} {
		if !regexp.MustCompile("(?m)^" + want + "$").MatchString(deb) {
			t.Errorf("the packages lack %s:\n%s", want, deb)
		}
	}
	if conf := list("dpkg-deb --ctrl-tarfile berth_*.deb | tar -xO ./conffiles 2>/dev/null || true; rpm -qcp berth-*.rpm"); conf != "/etc/berth/berthd.yaml\n" {
		t.Errorf("configuration files are %q", conf)
	}
	scripts := map[string]string{"postinst": "POSTIN", "prerm": "PREUN", "postrm": "POSTUN"}
	for deb, rpm := range scripts {
		if list("dpkg-deb --ctrl-tarfile berth_*.deb | tar -xO ./"+deb) != list("rpm -qp --qf '%{"+rpm+"}' berth-*.rpm") {
			t.Errorf("the deb's %s and the rpm's %s differ", deb, rpm)
		}
	}
}
