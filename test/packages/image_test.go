package packages

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

// unpacked returns the files of an image that `make packages` has made, in a root folder of their own, and the image's entrypoint.
func unpacked(t *testing.T, name string) (d debian, entrypoint string) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(programs.Tree(t), "bin", "packages", "0.0.1", name+"-[0-9]*-image.tar"))
	must(t, err)
	if len(found) != 1 {
		programs.Missing(t, "an image is missing: run `make packages`")
	}
	archive, root := t.TempDir(), t.TempDir()
	untar := func(file, dir string) {
		t.Helper()
		if out, err := exec.Command("tar", "-C", dir, "-xf", file).CombinedOutput(); err != nil {
			t.Fatalf("tar -xf %s: %v\n%s", file, err, out)
		}
	}
	untar(found[0], archive)

	// From the layout's index to the image's, its manifest, and its layers (OCI image
	// specification 1.1).
	type reference struct{ Digest string }
	type document struct {
		Manifests, Layers []reference
		Config            reference
	}
	read := func(path string) (d document) {
		t.Helper()
		raw, err := os.ReadFile(path)
		must(t, err)
		must(t, json.Unmarshal(raw, &d))
		return d
	}
	blob := func(r reference) string {
		return filepath.Join(archive, "blobs", strings.Replace(r.Digest, ":", "/", 1))
	}
	manifest := read(blob(read(blob(read(filepath.Join(archive, "index.json")).Manifests[0])).Manifests[0]))
	for _, l := range manifest.Layers {
		untar(blob(l), root)
	}
	raw, err := os.ReadFile(blob(manifest.Config))
	must(t, err)
	var config struct{ Config struct{ Entrypoint []string } }
	must(t, json.Unmarshal(raw, &config))
	return debian{t, root}, config.Config.Entrypoint[0]
}

// The image's programs run where there is nothing but the image. How the archive is made,
// for both architectures, build/image tests.
func TestImage(t *testing.T) {
	nettest.Need(t)
	d, entrypoint := unpacked(t, "berth")
	root := d.dir
	for program, want := range map[string]string{
		entrypoint:       "berthd version v0.0.1\n",
		"/usr/bin/berth": "berth version v0.0.1\n",
	} {
		out, err := d.command(program, "--version").CombinedOutput()
		if err != nil || string(out) != want {
			t.Errorf("%s --version says %q: %v", program, out, err)
		}
	}
	for _, name := range []string{"berth.rules.yaml", "berth.dashboard.json", "berth-operator.rules.yaml", "berth-operator.dashboard.json"} {
		if _, err := os.Stat(filepath.Join(root, "usr/share/doc/berth/examples", name)); err != nil {
			t.Error(err)
		}
	}
	if to, err := os.Readlink(root + "/var/run"); to != "/run" {
		t.Errorf("/var/run leads to %q, want /run, since containerd names network namespaces by /var/run/netns: %v", to, err)
	}
	d.mount("/proc") // as every runtime does
	// As from an init container, with the host's folders mounted.
	for _, dir := range []string{"/host/bin", "/host/net.d"} {
		must(t, os.MkdirAll(root+dir, 0o755))
	}
	if out, err := d.command("/usr/bin/berth", "install", "--bin-dir", "/host/bin", "--conf-dir", "/host/net.d").CombinedOutput(); err != nil {
		t.Errorf("berth install: %v\n%s", err, out)
	}
	d.same("/host/bin/berth-cni", "/usr/bin/berth-cni")
}
