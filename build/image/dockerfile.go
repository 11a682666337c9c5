package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// dockerfile has what a Dockerfile says, as far as Berth's own Dockerfile needs it: that
// Dockerfile runs nothing to make the image.
type dockerfile struct {
	config v1.Config
	copies []copied
}

// copied is a COPY of the files of a folder.
type copied struct{ from, to string }

// parse reads a Dockerfile for an architecture. An instruction that parse does not know is an error.
func parse(text, arch string) (dockerfile, error) {
	d := dockerfile{config: v1.Config{Labels: map[string]string{}}}
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if err := d.instruction(strings.ReplaceAll(line, "${TARGETARCH}", arch)); err != nil {
			return d, fmt.Errorf("line %d: %w", i+1, err)
		}
	}
	return d, nil
}

func (d *dockerfile) instruction(line string) error {
	word, rest, _ := strings.Cut(line, " ")
	args := strings.Fields(rest)
	switch {
	case line == "FROM scratch", line == "ARG TARGETARCH":
		return nil
	case word == "LABEL" && len(args) == 1 && strings.Contains(rest, "="):
		key, value, _ := strings.Cut(rest, "=")
		d.config.Labels[key] = value
		return nil
	case word == "ENV" && len(args) == 1 && strings.Contains(rest, "="):
		d.config.Env = append(d.config.Env, rest)
		return nil
	case word == "COPY" && len(args) == 2 && strings.HasSuffix(args[0], "/") && strings.HasSuffix(args[1], "/"):
		d.copies = append(d.copies, copied{args[0], args[1]})
		return nil
	case word == "ENTRYPOINT":
		return json.Unmarshal([]byte(rest), &d.config.Entrypoint)
	}
	return fmt.Errorf("%q is more than build/image knows", line)
}

// image makes the image, with one layer.
func (d dockerfile) image(context, arch string, at time.Time) (v1.Image, error) {
	raw, err := d.layer(context, at)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(raw)), nil
	}, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err = mutate.Append(img, mutate.Addendum{Layer: layer, History: v1.History{Created: v1.Time{Time: at}, CreatedBy: "build/image"}})
	if err != nil {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created, config.Config = "linux", arch, v1.Time{Time: at}, d.config
	return mutate.ConfigFile(img, config)
}

// layer returns the tar of all that is copied: root's files, which anybody may read, and symlinks,
// with the folders that they are in.
func (d dockerfile) layer(context string, at time.Time) ([]byte, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	made := map[string]bool{"/": true}
	var folder func(dir string) error
	folder = func(dir string) error {
		if made[dir] {
			return nil
		}
		made[dir] = true
		if err := folder(path.Dir(dir)); err != nil {
			return err
		}
		return w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir[1:] + "/", Mode: 0o755, ModTime: at, Format: tar.FormatPAX})
	}
	for _, c := range d.copies {
		if err := folder(path.Clean(c.to)); err != nil {
			return nil, err
		}
		files, err := os.ReadDir(filepath.Join(context, c.from)) // sorted
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			if err := copyFile(w, path.Join(c.to, file.Name())[1:], filepath.Join(context, c.from, file.Name()), at); err != nil {
				return nil, err
			}
		}
	}
	if err := w.Close(); err != nil { // Close writes the tar's end into buf
		return nil, err
	}
	return buf.Bytes(), nil
}

// copyFile writes a file into a tar, or a symlink as it is.
func copyFile(w *tar.Writer, name, from string, at time.Time) error {
	info, err := os.Lstat(from)
	if err != nil {
		return err
	}
	if info.Mode().Type() == fs.ModeSymlink {
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777, ModTime: at, Format: tar.FormatPAX})
	}
	raw, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return add(w, name, int64(info.Mode().Perm())|0o444, raw, at)
}
