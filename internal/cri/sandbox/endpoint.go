package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Endpoint is the absolute path of a runtime's socket.
type Endpoint string

func (e Endpoint) String() string { return "unix://" + string(e) }

// Parse reads an endpoint as crictl and the kubelet have it, unix:///run/containerd/containerd.sock, or as a path.
func Parse(text string) (Endpoint, error) {
	path, isURL := strings.CutPrefix(text, "unix://")
	if scheme, _, other := strings.Cut(text, "://"); other && !isURL {
		return "", fmt.Errorf("%.200q: a container runtime is asked over a unix socket, not by %.20s", text, scheme)
	}
	if !filepath.IsAbs(path) {
		return "", fmt.Errorf("%.200q: expected unix:///PATH or /PATH of a socket", text)
	}
	return Endpoint(filepath.Clean(path)), nil
}

// usual are the sockets of the runtimes, unless their configurations say something else: of containerd, of CRI-O, of the containerd
// of k3s and RKE2, and of cri-dockerd.
var usual = []string{
	"/run/containerd/containerd.sock", "/run/crio/crio.sock", "/run/k3s/containerd/containerd.sock", "/run/cri-dockerd.sock",
}

// Find returns the endpoint of the only runtime whose usual socket is there.
func Find() (Endpoint, error) { return find(usual) }

func find(paths []string) (Endpoint, error) {
	var found []string
	for _, path := range paths {
		info, err := os.Stat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return "", err
		case info.Mode().Type() == fs.ModeSocket:
			found = append(found, path)
		}
	}
	const give = "give the kubelet's with --runtime-endpoint"
	switch len(found) {
	case 0:
		return "", fmt.Errorf("no container runtime has a socket at %s: %s", strings.Join(paths, ", "), give)
	case 1:
		return Endpoint(found[0]), nil
	}
	return "", fmt.Errorf("several container runtimes have sockets, at %s: %s", strings.Join(found, ", "), give)
}
