package routes

import (
	"path/filepath"
	"strings"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/daemon/server"
)

// readAdd reads the body of an ADD or a CHECK.
func readAdd(r *server.Request) (api.AddRequest, error) {
	var req api.AddRequest
	if err := r.Body(&req, "containerID", "ifname", "netns", "config"); err != nil {
		return req, err
	}
	r.About(func() []any { return aboutAdd(req) })
	for _, e := range []*api.Error{
		cni.CheckContainerID(req.ContainerID),
		cni.CheckIfname(req.Ifname),
		cni.CheckNetnsPath(req.Netns.Path),
	} {
		if e != nil {
			return req, e
		}
	}
	return req, nil
}

// aboutAdd returns what the log says of an ADD or a CHECK that fails: the readable parts of the
// request's attachment.
func aboutAdd(req api.AddRequest) []any {
	head, _ := cni.ParseHead(req.Config)
	args, _ := cni.ParseArgs(req.Args)
	return attachment.AboutKey(attachment.Key{Network: head.Name, ContainerID: req.ContainerID, Ifname: req.Ifname}, args.Pod)
}

// readGC reads the body of a GC. The list valid may be null, which means an empty list (libcni sends
// an empty list so). The list may not be absent: a client that forgot it would delete everything.
func readGC(r *server.Request) (api.GCRequest, error) {
	var req api.GCRequest
	if err := r.Body(&req, "network", "valid"); err != nil {
		return req, err
	}
	if e := cni.CheckNetworkName(req.Network); e != nil {
		return req, e
	}
	for _, v := range req.Valid {
		if e := cni.CheckValid(v); e != nil {
			return req, e
		}
	}
	if req.MinAge < 0 {
		return req, cni.Errorf(cni.CodeConfig, "invalid minAge", "minAge is %v; expected nanoseconds, none or more", req.MinAge)
	}
	return req, nil
}

// maxDirs is how many folders of one sort an adoption looks into.
const maxDirs = 16

// readAdopt reads the body of an adoption, which may be empty.
func readAdopt(r *server.Request) (api.AdoptRequest, error) {
	var req api.AdoptRequest
	if err := r.Body(&req); err != nil {
		return req, err
	}
	for _, dirs := range []struct {
		key   string
		paths []string
	}{{"binDirs", req.BinDirs}, {"cniDirs", req.CNIDirs}} {
		if len(dirs.paths) > maxDirs {
			return req, cni.Errorf(cni.CodeConfig, "invalid "+dirs.key, "%s has %d folders; expected at most %d", dirs.key, len(dirs.paths), maxDirs)
		}
		for _, path := range dirs.paths {
			// A colon would make two folders of one in CNI_PATH.
			if !filepath.IsAbs(path) || strings.Contains(path, ":") || !cni.IsShowable(path, maxDir) {
				return req, cni.Errorf(cni.CodeConfig, "invalid "+dirs.key, "%s has %.64q; expected an absolute path of at most %d bytes, without a colon", dirs.key, path, maxDir)
			}
		}
	}
	return req, nil
}

// maxDir is how many bytes the path of a folder has.
const maxDir = 1024
