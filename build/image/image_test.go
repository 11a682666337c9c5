package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

var arches = []string{"amd64", "arm64"}

// makeArchive writes the archive of a context with stand-ins for the programs, and returns the
// archive's path.
func makeArchive(t *testing.T) string {
	t.Helper()
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	context := t.TempDir()
	for _, arch := range arches {
		bin := filepath.Join(context, arch, "bin")
		must(t, os.MkdirAll(bin, 0o755))
		for _, name := range []string{"berthd", "berth", "berth-cni"} {
			must(t, os.WriteFile(filepath.Join(bin, name), []byte(name+" for "+arch), 0o700))
		}
		examples := filepath.Join(context, arch, "examples")
		must(t, os.MkdirAll(examples, 0o755))
		must(t, os.WriteFile(filepath.Join(examples, "a.yaml"), []byte("alerts"), 0o600))
	}
	must(t, os.Mkdir(filepath.Join(context, "var"), 0o755))
	must(t, os.Symlink("/run", filepath.Join(context, "var", "run")))
	out := filepath.Join(t.TempDir(), "image.tar")
	must(t, run("../Dockerfile", context, "berth", "v0.1.0+3.gabc", out, arches))
	return out
}

// The image of the suite has the program of its architecture, and the folders that plugins write to.
func TestSuiteImage(t *testing.T) {
	context, out := t.TempDir(), filepath.Join(t.TempDir(), "image.tar")
	for _, dir := range []string{"empty", "arm64/bin"} {
		must(t, os.MkdirAll(filepath.Join(context, dir), 0o755))
	}
	must(t, os.WriteFile(filepath.Join(context, "arm64/bin/cni-conform"), []byte("suite"), 0o755))
	must(t, run("../cni-conform.Dockerfile", context, "cni-conform", "v0.1.0+3.gabc", out, arches[1:]))
	outer, index := named(t, out)
	if name := outer.Annotations["io.containerd.image.name"]; name != "localhost/cni-conform:v0.1.0_3.gabc" {
		t.Errorf("the image is named %q", name)
	}
	m, err := index.IndexManifest()
	must(t, err)
	img, err := index.Image(m.Manifests[0].Digest)
	must(t, err)
	c, err := img.ConfigFile()
	must(t, err)
	if c.Architecture != "arm64" || !slices.Equal(c.Config.Entrypoint, []string{"/usr/bin/cni-conform"}) {
		t.Errorf("configuration %+v", c)
	}
	layers, err := img.Layers()
	must(t, err)
	content, err := layers[0].Uncompressed()
	must(t, err)
	want := map[string]string{"usr/bin/cni-conform": "-rwxr-xr-x suite"}
	for _, dir := range []string{"etc/", "run/", "tmp/", "usr/", "usr/bin/", "var/", "var/lib/", "var/log/", "var/tmp/"} {
		want[dir] = "drwxr-xr-x "
	}
	if have := files(t, content); !reflect.DeepEqual(have, want) {
		t.Errorf("the image has %v, want %v", have, want)
	}
}

// named returns the one image that the archive of an OCI layout lists, and how it lists it.
func named(t *testing.T, archive string) (v1.Descriptor, v1.ImageIndex) {
	t.Helper()
	outer, err := layout.ImageIndexFromPath(unpack(t, archive))
	must(t, err)
	must(t, validate.Index(outer))
	m, err := outer.IndexManifest()
	must(t, err)
	if len(m.Manifests) != 1 {
		t.Fatalf("the layout lists %+v", m.Manifests)
	}
	index, err := outer.ImageIndex(m.Manifests[0].Digest)
	must(t, err)
	return m.Manifests[0], index
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The archive is a valid OCI layout of one image for both architectures, with the
// Dockerfile's entrypoint and the programs of the architecture.
func TestImage(t *testing.T) {
	listed, index := named(t, makeArchive(t))
	if listed.Annotations["org.opencontainers.image.ref.name"] != "v0.1.0_3.gabc" || listed.Annotations["io.containerd.image.name"] != "localhost/berth:v0.1.0_3.gabc" {
		t.Fatalf("the layout lists %+v", listed)
	}
	m, err := index.IndexManifest()
	must(t, err)
	var have []string
	for _, desc := range m.Manifests {
		have = append(have, desc.Platform.String())
		img, err := index.Image(desc.Digest)
		must(t, err)
		check(t, img, desc.Platform.Architecture)
	}
	if want := []string{"linux/amd64", "linux/arm64"}; !slices.Equal(have, want) {
		t.Errorf("the image is for %v, want %v", have, want)
	}
}

func check(t *testing.T, img v1.Image, arch string) {
	t.Helper()
	c, err := img.ConfigFile()
	must(t, err)
	if c.OS != "linux" || c.Architecture != arch || !slices.Equal(c.Config.Entrypoint, []string{"/usr/bin/berthd"}) || len(c.Config.Env) != 1 ||
		c.Config.Labels["org.opencontainers.image.version"] != "v0.1.0+3.gabc" || c.Created.Unix() != 1700000000 {
		t.Errorf("%s: configuration %+v", arch, c)
	}
	layers, err := img.Layers()
	must(t, err)
	if len(layers) != 1 {
		t.Fatalf("%s: %d layers", arch, len(layers))
	}
	content, err := layers[0].Uncompressed()
	must(t, err)
	want := map[string]string{
		"usr/": "drwxr-xr-x ", "usr/bin/": "drwxr-xr-x ", "usr/bin/berth": "-rwxr--r-- berth for " + arch,
		"usr/share/": "drwxr-xr-x ", "usr/share/doc/": "drwxr-xr-x ", "usr/share/doc/berth/": "drwxr-xr-x ",
		"usr/share/doc/berth/examples/": "drwxr-xr-x ", "usr/share/doc/berth/examples/a.yaml": "-rw-r--r-- alerts",
		"usr/bin/berth-cni": "-rwxr--r-- berth-cni for " + arch, "usr/bin/berthd": "-rwxr--r-- berthd for " + arch,
		"var/": "drwxr-xr-x ", "var/run": "Lrwxrwxrwx /run",
	}
	if have := files(t, content); !reflect.DeepEqual(have, want) {
		t.Errorf("%s has %v, want %v", arch, have, want)
	}
}

// files returns a tar's files, each with its mode and with its content or, of a symlink, the target.
func files(t *testing.T, from io.Reader) map[string]string {
	t.Helper()
	all := map[string]string{}
	for r := tar.NewReader(from); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		must(t, err)
		raw, err := io.ReadAll(r)
		must(t, err)
		all[h.Name] = h.FileInfo().Mode().String() + " " + h.Linkname + string(raw)
	}
}

// unpack returns a folder with the content of a tar.
func unpack(t *testing.T, path string) string {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	dir := t.TempDir()
	for name, content := range files(t, f) {
		at := filepath.Join(dir, name)
		must(t, os.MkdirAll(filepath.Dir(at), 0o755))
		_, raw, _ := strings.Cut(content, " ")
		must(t, os.WriteFile(at, []byte(raw), 0o644))
	}
	return dir
}

// The same input gives the same bytes.
func TestReproducible(t *testing.T) {
	a, err := os.ReadFile(makeArchive(t))
	must(t, err)
	b, err := os.ReadFile(makeArchive(t))
	must(t, err)
	if !bytes.Equal(a, b) {
		t.Error("two archives of the same programs differ")
	}
}

// An instruction that Docker carries out, and that build/image cannot, is an error. The error names
// the line.
func TestUnknown(t *testing.T) {
	for _, line := range []string{"FROM debian", "RUN true", "COPY a b", "COPY a/ b/ c/", "ENTRYPOINT berthd", "USER 1", "from scratch"} {
		if _, err := parse("FROM scratch\n"+line, "amd64"); err == nil || !strings.Contains(err.Error(), "line 2") {
			t.Errorf("%s: %v", line, err)
		}
	}
}
