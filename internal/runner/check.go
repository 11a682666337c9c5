package runner

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/runner/wire"
)

// verbs are the values of CNI_COMMAND; true: the verb is about one container.
var verbs = map[string]bool{"ADD": true, "DEL": true, "CHECK": true, "GC": false, "STATUS": false, "VERSION": false}

// maxType is how many bytes the name of a file may have.
const maxType = 255

// checkFind checks what is searched, and returns the folders as they are compared.
func (r *Runner) checkFind(f wire.Find) ([]string, *api.Error) {
	if f.Type == "" || f.Type == "." || f.Type == ".." || strings.Contains(f.Type, "/") || !cni.IsShowable(f.Type, maxType) {
		return nil, refused("type", f.Type, "the name of a plugin's file, without a path")
	}
	if len(f.Folders) == 0 || len(f.Folders) > wire.MaxFolders {
		return nil, cni.Errorf(cni.CodeConfig, "invalid request", "%d folders are to be searched for %s; expected 1 to %d", len(f.Folders), f.Type, wire.MaxFolders)
	}
	return r.allowed("folder", f.Folders)
}

// allowed checks that folders are the runner's.
func (r *Runner) allowed(key string, folders []string) (clean []string, _ *api.Error) {
	for _, folder := range folders {
		c := filepath.Clean(folder)
		if !slices.Contains(r.folders, c) {
			return nil, refused(key, folder, "one of the runner's own folders, "+strings.Join(r.folders, ", ")+"; berth-runner's --bin-dir allows more")
		}
		clean = append(clean, c)
	}
	return clean, nil
}

// check checks a request, but for its Find.
func (r *Runner) check(req wire.Request) *api.Error {
	for name, value := range req.Env {
		switch {
		case !slices.Contains(wire.Variables(), name):
			return refused("environment variable", name, "one of "+strings.Join(wire.Variables(), ", "))
		case len(value) > wire.MaxValue || strings.Contains(value, "\x00"):
			return cni.EnvError(name, value, "at most 16 KiB without a NUL")
		}
	}
	ofContainer, known := verbs[req.Env[wire.Command]]
	if !known {
		return cni.EnvError(wire.Command, req.Env[wire.Command], "ADD, DEL, CHECK, GC, STATUS or VERSION")
	}
	if id := req.Env[wire.ContainerID]; ofContainer || id != "" {
		if err := cni.CheckContainerID(id); err != nil {
			return err
		}
	}
	// A plugin looks for the plugins that it calls itself, such as its IPAM, in CNI_PATH. VERSION calls
	// none, and libcni gives it "dummy".
	if path := req.Env[wire.Path]; path != "" && req.Env[wire.Command] != "VERSION" {
		if _, err := r.allowed(wire.Path, filepath.SplitList(path)); err != nil {
			return err
		}
	}
	if len(req.Stdin) > wire.MaxStdin {
		return cni.Errorf(cni.CodeConfig, "invalid request", "stdin has %d bytes; expected at most %d", len(req.Stdin), wire.MaxStdin)
	}
	if req.Timeout <= 0 || req.Timeout > wire.MaxTimeout {
		return refused("timeout", req.Timeout.String(), "more than 0 and at most "+wire.MaxTimeout.String())
	}
	return nil
}

// shownOf is how many bytes of a value a refusal shows at most.
const shownOf = 64

func refused(key, value, expected string) *api.Error {
	return cni.Errorf(cni.CodeConfig, "invalid request", "%s is %.*q; expected %s", key, shownOf, value, expected)
}
