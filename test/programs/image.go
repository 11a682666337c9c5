package programs

import (
	"archive/tar"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/nettest"
)

// blob is a part of an image as other parts name it (OCI image spec, descriptor).
type blob struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// Image is a container image of one layer.
type Image struct {
	Name       string
	Entrypoint []string
	Command    []string
	Path       string // of programs; "": /bin
	Files      []File
}

// Write writes the image into a file, as an archive in the OCI image layout.
func (i Image) Write(file string) error {
	layer, err := archive(i.Files)
	if err != nil {
		return fmt.Errorf("image %s: %w", i.Name, err)
	}
	parts := map[string][]byte{"oci-layout": []byte(`{"imageLayoutVersion": "1.0.0"}`)}
	add := func(mediaType string, content []byte) blob {
		digest := fmt.Sprintf("%x", sha256.Sum256(content))
		parts["blobs/sha256/"+digest] = content
		return blob{MediaType: mediaType, Digest: "sha256:" + digest, Size: len(content)}
	}
	layerBlob := add("application/vnd.oci.image.layer.v1.tar", layer)
	config := add("application/vnd.oci.image.config.v1+json", encode(map[string]any{
		"created": time.Unix(0, 0).UTC(), "architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": i.Entrypoint, "Cmd": i.Command, "Env": []string{"PATH=" + cmp.Or(i.Path, "/bin")}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{layerBlob.Digest}},
	}))
	manifest := add("application/vnd.oci.image.manifest.v1+json", encode(map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": config, "layers": []blob{layerBlob},
	}))
	manifest.Annotations = map[string]string{"io.containerd.image.name": i.Name}
	parts["index.json"] = encode(map[string]any{"schemaVersion": 2, "manifests": []blob{manifest}})

	var files []File
	for name, content := range parts {
		files = append(files, File{Name: name, Mode: 0o644, Content: content})
	}
	whole, err := archive(files)
	if err != nil {
		return fmt.Errorf("image %s: %w", i.Name, err)
	}
	return os.WriteFile(file, whole, 0o644)
}

// Busybox returns the files of an image of busybox, under its own name and its applets' names in /bin.
func Busybox(t testing.TB, applets ...string) []File {
	t.Helper()
	path, err := exec.LookPath("busybox")
	nettest.Must(t, err)
	busybox, err := os.ReadFile(path)
	nettest.Must(t, err)
	files := []File{{Name: "bin/busybox", Mode: 0o755, Content: busybox}}
	for _, a := range applets {
		files = append(files, File{Name: filepath.Join("bin", a), Mode: 0o777, Link: "busybox"})
	}
	return files
}

// File is a file, or a symbolic link, of an archive.
type File struct {
	Name    string
	Mode    int64
	Content []byte
	Link    string
}

func archive(files []File) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: f.Name, Mode: f.Mode, Size: int64(len(f.Content))}
		if f.Link != "" {
			h.Typeflag, h.Linkname = tar.TypeSymlink, f.Link
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.Content); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// encode returns a part of an image as JSON. Such parts are strings, numbers, lists and maps, so that nothing can fail.
func encode(v any) []byte {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return raw
}
