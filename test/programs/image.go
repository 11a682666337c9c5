package programs

import (
	"archive/tar"
	"bytes"
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

// WriteImage writes an archive in the OCI image layout: an image with that name, of busybox under the names
// of these applets. The image's command is a long sleep.
func WriteImage(t testing.TB, file, name string, applets ...string) {
	t.Helper()
	layer := archive(t, layerFiles(t, applets))
	parts := map[string][]byte{"oci-layout": []byte(`{"imageLayoutVersion": "1.0.0"}`)}
	add := func(mediaType string, content []byte) blob {
		digest := fmt.Sprintf("%x", sha256.Sum256(content))
		parts["blobs/sha256/"+digest] = content
		return blob{MediaType: mediaType, Digest: "sha256:" + digest, Size: len(content)}
	}
	layerBlob := add("application/vnd.oci.image.layer.v1.tar", layer)
	config := add("application/vnd.oci.image.config.v1+json", encode(t, map[string]any{
		"created": time.Unix(0, 0).UTC(), "architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Cmd": []string{"/bin/sleep", "86400"}, "Env": []string{"PATH=/bin"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{layerBlob.Digest}},
	}))
	manifest := add("application/vnd.oci.image.manifest.v1+json", encode(t, map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": config, "layers": []blob{layerBlob},
	}))
	manifest.Annotations = map[string]string{"io.containerd.image.name": name}
	parts["index.json"] = encode(t, map[string]any{"schemaVersion": 2, "manifests": []blob{manifest}})

	var files []tarFile
	for name, content := range parts {
		files = append(files, tarFile{name: name, mode: 0o644, content: content})
	}
	nettest.Must(t, os.WriteFile(file, archive(t, files), 0o644))
}

// layerFiles are the files of an image: busybox under its applets' names.
func layerFiles(t testing.TB, applets []string) []tarFile {
	t.Helper()
	path, err := exec.LookPath("busybox")
	nettest.Must(t, err)
	busybox, err := os.ReadFile(path)
	nettest.Must(t, err)
	files := []tarFile{{name: "bin/busybox", mode: 0o755, content: busybox}}
	for _, a := range applets {
		files = append(files, tarFile{name: filepath.Join("bin", a), mode: 0o777, link: "busybox"})
	}
	return files
}

// tarFile is a file, or a symbolic link, of an archive.
type tarFile struct {
	name    string
	mode    int64
	content []byte
	link    string
}

func archive(t testing.TB, files []tarFile) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: f.mode, Size: int64(len(f.content))}
		if f.link != "" {
			h.Typeflag, h.Linkname = tar.TypeSymlink, f.link
		}
		nettest.Must(t, w.WriteHeader(h))
		if _, err := w.Write(f.content); err != nil {
			t.Fatal(err)
		}
	}
	nettest.Must(t, w.Close())
	return out.Bytes()
}

func encode(t testing.TB, v any) []byte {
	t.Helper()
	raw, err := json.Marshal(v)
	nettest.Must(t, err)
	return raw
}
