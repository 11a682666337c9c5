// Package packages installs, upgrades and removes Berth's packages in a minimal Debian, as
// people do.
package packages

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

func TestMain(m *testing.M) { nettest.Main(m) }

var must = nettest.Must

// debian is the root folder of a Debian. It has the network and the /run of the test's node,
// and no systemd.
type debian struct {
	t   *testing.T
	dir string
}

// newDebian unpacks the Debian of test/debian.
func newDebian(t *testing.T) debian {
	t.Helper()
	nettest.Need(t)
	programs.Root(t, "only root can give the files of a Debian to their users")
	base, err := exec.Command(filepath.Join(programs.Tree(t), "test", "debian")).Output()
	if err != nil {
		programs.Missing(t, "there is no minimal Debian: run `make packages` as root")
	}
	d := debian{t, t.TempDir()}
	unpack := exec.Command("tar", "-C", d.dir, "-xf", strings.TrimSpace(string(base)))
	if out, err := unpack.CombinedOutput(); err != nil {
		t.Fatalf("unpacking Debian: %v\n%s", err, out)
	}
	nettest.Run(t, nil, "ip address replace 192.0.2.1/32 dev lo") // the node talks to pods from this address
	must(t, unix.Mount("", "/run", "", unix.MS_SHARED, ""))       // what a runtime binds below /run/netns later is seen here, too
	d.mount("/dev", "/proc", "/run", "/sys")
	return d
}

// mount gives the root folder some of the node's file systems.
func (d debian) mount(dirs ...string) {
	d.t.Helper()
	for _, dir := range dirs {
		at := d.dir + dir
		must(d.t, os.MkdirAll(at, 0o755))
		must(d.t, unix.Mount(dir, at, "", unix.MS_BIND|unix.MS_REC, ""))
		d.t.Cleanup(func() {
			must(d.t, unix.Mount("", at, "", unix.MS_REC|unix.MS_PRIVATE, "")) // so that nobody else loses mounts
			must(d.t, unix.Unmount(at, unix.MNT_DETACH))
		})
	}
}

// command is exec.Command for a program of Debian's.
func (d debian) command(path string, args ...string) *exec.Cmd {
	cmd := exec.Command(path, args...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: d.dir}
	return cmd
}

// sh runs a line of shell and returns what it prints.
func (d debian) sh(line string) (string, error) {
	out, err := d.command("/bin/sh", "-c", line).CombinedOutput()
	return string(out), err
}

// must is sh for a line that has to succeed, and to print all of want.
func (d debian) must(line string, want ...string) string {
	d.t.Helper()
	out, err := d.sh(line)
	if err != nil {
		d.t.Fatalf("%s: %v\n%s", line, err, out)
	}
	for _, w := range want {
		if !strings.Contains(out, w) {
			d.t.Errorf("%s does not say %q:\n%s", line, w, out)
		}
	}
	return out
}

// refuses is must for a line that has to fail.
func (d debian) refuses(line string, want ...string) {
	d.t.Helper()
	d.must("! ( "+line+" )", want...)
}

// bring copies a package of `make packages` to where Debian sees it, and returns its path
// there.
func (d debian) bring(version, pattern string) string {
	d.t.Helper()
	found, err := filepath.Glob(filepath.Join(programs.Tree(d.t), "bin", "packages", version, pattern))
	must(d.t, err)
	if len(found) != 1 {
		programs.Missing(d.t, "one package "+version+"/"+pattern+" is missing: run `make packages`")
	}
	from, err := os.Open(found[0])
	must(d.t, err)
	defer from.Close()
	path := "/tmp/" + filepath.Base(found[0])
	to, err := os.Create(d.dir + path)
	must(d.t, err)
	_, err = io.Copy(to, from)
	must(d.t, err)
	must(d.t, to.Close())
	d.t.Cleanup(func() { os.Remove(to.Name()) })
	return path
}

// files returns what there is in Debian, without what the package managers keep for themselves.
func (d debian) files() nettest.State {
	d.t.Helper()
	all := nettest.Files(d.t, "/run").Below("/run")
	for _, dir := range []string{"/etc", "/opt", "/tmp", "/usr", "/var"} {
		all = all.And(nettest.Files(d.t, d.dir+dir).Below(dir))
	}
	return all.But([]string{"file /var/lib/dpkg/", "file /var/lib/rpm/", "file /var/cache/", "file /var/log/"})
}

// read returns a file of Debian's.
func (d debian) read(path string) []byte {
	d.t.Helper()
	raw, err := os.ReadFile(d.dir + path)
	must(d.t, err)
	return raw
}

// has reports whether Debian has a file.
func (d debian) has(path string) bool {
	_, err := os.Lstat(d.dir + path)
	return err == nil
}

// same fails the test unless two files of Debian's have the same content.
func (d debian) same(a, b string) {
	d.t.Helper()
	if !bytes.Equal(d.read(a), d.read(b)) {
		d.t.Errorf("%s and %s differ", a, b)
	}
}
