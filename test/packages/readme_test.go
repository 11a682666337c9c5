package packages

import (
	"bufio"
	_ "embed"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// systemctl stands in for systemd, which does not run in a chroot: it starts and stops berthd as
// the unit does, and does nothing else that it is asked for.
//
//go:embed systemctl
var systemctl []byte

// A way is one of the README's ways to install, and says which commands belong to it.
type way struct {
	from    string // what `make packages` has for this way
	ready   string // makes /src, in which the commands run, of the file from
	belongs func(block string) bool
}

var ways = map[string]way{
	"package": {"berth_*.deb", "mkdir -p /src/dist && rm -f /src/dist/* && ln %s /src/dist/",
		func(block string) bool { return strings.Contains(block, "dpkg ") }},
	// An archive has what make makes.
	"no package": {"berth-*-linux-*.tar.gz", "mkdir -p /src && tar -C /src --strip-components=1 -xzf %s",
		func(block string) bool {
			return !strings.Contains(block, "dpkg ") && strings.Contains(block, "install")
		}},
}

// commands returns the commands of a section of README.md.
func commands(t *testing.T, section string, belongs func(block string) bool) []string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(programs.Tree(t), "README.md"))
	must(t, err)
	_, text, _ := strings.Cut(string(raw), "\n## "+section+"\n")
	text, _, _ = strings.Cut(text, "\n## ")
	var all []string
	for _, block := range strings.Split(text, "\n```sh\n")[1:] {
		block, _, _ = strings.Cut(block, "\n```\n")
		if belongs(block + "\n") {
			all = append(all, strings.Split(block, "\n")...)
		}
	}
	if len(all) == 0 {
		t.Fatalf("README.md has no such commands in %q", section)
	}
	return all
}

// A user who types the README's commands installs, upgrades and removes Berth with systemd, on a
// node with Debian's containerd. A pod's connection goes on through the upgrade.
func TestReadme(t *testing.T) {
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			d := newDebian(t)
			must(t, os.MkdirAll("/run/systemd/system", 0o755)) // /run is the node's: sd_booted(3)
			must(t, os.WriteFile(d.dir+"/usr/bin/systemctl", systemctl, 0o755))
			for _, name := range []string{"editor", "make"} {
				must(t, os.RemoveAll(d.dir+"/usr/bin/"+name))
				must(t, os.Symlink("/bin/true", d.dir+"/usr/bin/"+name))
			}
			t.Cleanup(func() { d.sh("systemctl stop berthd.service"); os.RemoveAll("/run/systemd") })
			d.containerd()
			files, node := d.files(), nettest.Snapshot(t, nil).Without("sysctl")

			ready := func(version string) {
				from := d.bring(version, way.from)
				d.must(fmt.Sprintf(way.ready, from) + " && rm " + from)
			}
			run := func(lines []string) (said string) {
				for _, line := range lines {
					said += d.must("cd /src && "+strings.ReplaceAll(line, "amd64", runtime.GOARCH)) + "\n"
				}
				return said
			}
			first := commands(t, "On a node", way.belongs)
			ready("0.0.1")
			said := run(first)
			for _, want := range []string{"bin_dir in /etc/containerd/config.toml", debianBin + "/berth-cni", debianBin + "/loopback", "/etc/cni/net.d/10-berth.conflist"} {
				if !strings.Contains(said, want) {
					t.Errorf("the commands do not say %q:\n%s", want, said)
				}
			}
			said, _ = d.sh("berth doctor") // the machine decides whether all is well
			for _, check := range []string{"runtime", "plugin", "loopback", "conflist"} {
				if !regexp.MustCompile(`(?m)^ok +` + check + ` `).MatchString(said) {
					t.Errorf("berth doctor does not find the %s right:\n%s", check, said)
				}
			}
			pod := nettest.Pod(t)
			talk := programs.Converse(t, pod, d.plugin("ADD", "c1", pod))
			talk.GoesOn("before the upgrade")
			d.from(commands(t, "On a node", func(block string) bool { return strings.Contains(block, "berth events") }))
			ready("0.0.2")
			must(t, os.WriteFile(d.dir+"/etc/berth/berthd.yaml", append(d.read("/etc/berth/berthd.yaml"), "logLevel: debug\n"...), 0o644))
			run(commands(t, "Upgrade", way.belongs))
			d.must("berth version", "berth v0.0.2", "berthd v0.0.2")
			d.must("grep '^logLevel: debug' /etc/berth/berthd.yaml")
			d.must("cmp $(command -v berth-cni) " + debianBin + "/berth-cni")
			talk.GoesOn("after the upgrade")
			if name == "package" {
				former := d.bring("0.0.1", way.from)
				for _, line := range commands(t, "Upgrade", func(block string) bool { return strings.Contains(block, "FORMER.deb") }) {
					said = d.must("cd /src && " + strings.ReplaceAll(line, "FORMER.deb", former))
				}
				if !strings.Contains(said, "the configuration is fine") {
					t.Errorf("the former berthd says of the configuration: %s", said)
				}
				d.must("/src/former/usr/bin/berthd --version", "v0.0.1")
				d.must("rm -r /src/former " + former)
			}
			d.plugin("DEL", "c1", pod)
			nettest.Delete(t, pod)
			run(commands(t, "Remove", way.belongs))
			d.must("rmdir -p --ignore-fail-on-non-empty /etc/cni/net.d") // containerd looks for networks there
			nettest.Same(t, files, d.files(), "files are left")
			nettest.Same(t, node, nettest.Snapshot(t, nil).Without("sysctl"), "the node is not as it was")
		})
	}
}

// from types the commands that the README names for an installed node, while c1 is attached.
func (d debian) from(lines []string) {
	d.t.Helper()
	says := map[string]string{ // what each says
		"berth attachments": "c1",
		"berth events -f":   "attached",
		"berth owed":        "nothing is owed",
		"berth audit":       "nothing is left over or missing",
		"berth doctor":      "ok ",
	}
	for _, line := range lines {
		line, _, _ = strings.Cut(line, "#")
		line = strings.TrimSpace(line)
		want, known := says[line]
		delete(says, line)
		switch {
		case !known:
			d.t.Errorf("README.md has a command that this test does not know: %s", line)
		case line == "berth events -f": // the command ends with the agent, or when it is interrupted
			follows(d, line, want)
		default:
			said, err := d.sh(line)
			if !strings.Contains(said, want) || err != nil && line != "berth doctor" { // the machine decides whether all is well
				d.t.Errorf("%s does not say %q: %v\n%s", line, want, err, said)
			}
		}
	}
	for line := range says {
		d.t.Errorf("README.md does not have %s any more", line)
	}
}

// follows runs a command until it says something.
func follows(d debian, line, want string) {
	d.t.Helper()
	cmd := d.command("/bin/sh", "-c", "exec "+line+" --since 0") // from the beginning: c1 is attached already
	out, err := cmd.StdoutPipe()
	must(d.t, err)
	must(d.t, cmd.Start())
	defer cmd.Wait()
	defer cmd.Process.Kill()
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if strings.Contains(lines.Text(), want) {
			return
		}
	}
	d.t.Errorf("%s ended and did not say %q", line, want)
}

// A link of a packaged text leads to a file of the package, or to a page.
func TestLinks(t *testing.T) {
	programs.Need(t, "dpkg-deb")
	found, err := filepath.Glob(filepath.Join(programs.Tree(t), "bin", "packages", "0.0.1", "berth_*.deb"))
	must(t, err)
	if len(found) != 1 {
		programs.Missing(t, "a package is missing: run `make packages`")
	}
	dir := t.TempDir()
	if out, err := exec.Command("dpkg-deb", "-x", found[0], dir).CombinedOutput(); err != nil {
		t.Fatalf("dpkg-deb -x: %v\n%s", err, out)
	}
	links := 0
	must(t, filepath.WalkDir(filepath.Join(dir, "usr/share/doc/berth"), func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".md" {
			return err
		}
		text, err := os.ReadFile(path)
		for _, link := range regexp.MustCompile(`\]\(([^)#\s]+)[^)]*\)`).FindAllStringSubmatch(string(text), -1) {
			links++
			if strings.Contains(link[1], "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), link[1])); err != nil {
				t.Errorf("%s has a dead link: %s", strings.TrimPrefix(path, dir), link[1])
			}
		}
		return err
	}))
	if links < 10 {
		t.Errorf("the package's texts have %d links", links)
	}
}
