// Command image makes an OCI image of a Dockerfile and static programs, for several
// architectures, without a container runtime, and writes it as the archive of an OCI
// layout. With the same input it writes the same bytes.
//
//	image DOCKERFILE CONTEXT NAME VERSION OUT.tar ARCH...
//
// Times are SOURCE_DATE_EPOCH, or 1970.
package main

import (
	"archive/tar"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

func main() {
	if len(os.Args) < 7 {
		fmt.Fprintln(os.Stderr, "usage: image DOCKERFILE CONTEXT NAME VERSION OUT.tar ARCH...")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3], os.Args[4], os.Args[5], os.Args[6:]); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(dockerfile, context, name, version, out string, arches []string) error {
	seconds, _ := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	at := time.Unix(seconds, 0).UTC()
	raw, err := os.ReadFile(dockerfile)
	if err != nil {
		return err
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, arch := range arches {
		d, err := parse(string(raw), arch)
		if err != nil {
			return fmt.Errorf("%s: %w", dockerfile, err)
		}
		d.config.Labels["org.opencontainers.image.version"] = version
		img, err := d.image(context, arch, at)
		if err != nil {
			return fmt.Errorf("the image for %s: %w", arch, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
		})
	}
	// A layout's index lists images by name; all architectures are one image.
	tag := strings.ReplaceAll(version, "+", "_") // tags have no plus
	named := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex), mutate.IndexAddendum{
		Add: index, Descriptor: v1.Descriptor{Annotations: map[string]string{
			"org.opencontainers.image.ref.name": tag,
			"io.containerd.image.name":          "localhost/" + name + ":" + tag,
		}},
	})
	dir, err := os.MkdirTemp("", "berth-image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if _, err := layout.Write(dir, named); err != nil {
		return err
	}
	return archive(dir, out, at)
}

// archive writes a folder as a tar.
func archive(dir, out string, at time.Time) error {
	f, err := os.Create(out)
	if err != nil {
		return err
	}
	defer f.Close() // after an error; otherwise f is closed by then
	w := tar.NewWriter(f)
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return add(w, name, 0o644, raw, at)
	})
	if err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return f.Close()
}

// add writes root's file into a tar.
func add(w *tar.Writer, name string, mode int64, content []byte, at time.Time) error {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(content)), ModTime: at, Format: tar.FormatPAX}
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	_, err := w.Write(content)
	return err
}
