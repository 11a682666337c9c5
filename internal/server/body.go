package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/cni/scan"
)

// bodyTime is how long a client may take to send a body, once its request has
// a place.
const bodyTime = 5 * time.Second

// readBody reads a request's body into v, a pointer to a struct: a single JSON
// object with no key twice, none that v does not know, and all of required.
func readBody(w http.ResponseWriter, r *http.Request, v any, required ...string) error {
	conn := http.NewResponseController(w)
	// The answer of SetReadDeadline is for connections without deadlines,
	// which a test may have.
	_ = conn.SetReadDeadline(time.Now().Add(bodyTime))
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, api.MaxBody))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return &statusError{http.StatusRequestEntityTooLarge,
			cni.Errorf(cni.CodeDecode, "the request is too large", "a body has at most %d bytes", api.MaxBody)}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return cni.Errorf(cni.CodeTryAgain, "the request did not arrive", "its body was not there after %v", bodyTime)
	case err != nil:
		return cni.Errorf(cni.CodeDecode, "the request did not arrive", "reading its body: %v", err)
	}
	// From here on a read only notices that the client leaves.
	_ = conn.SetReadDeadline(time.Time{})
	return decode(raw, v, required...)
}

func decode(raw []byte, v any, required ...string) error {
	fields, err := scan.Object(raw)
	if err == nil {
		d := json.NewDecoder(bytes.NewReader(raw))
		d.DisallowUnknownFields()
		err = d.Decode(v)
	}
	if err != nil {
		return cni.Errorf(cni.CodeDecode, "the request is not what is expected", "its body: %v", err)
	}
	for _, key := range required {
		if !slices.ContainsFunc(fields, func(f scan.Field) bool { return f.Key == key }) {
			return cni.Errorf(cni.CodeConfig, "the request is incomplete", "its body has no %q", key)
		}
	}
	return nil
}

// readAdd reads the body of an ADD or a CHECK.
func readAdd(w http.ResponseWriter, r *http.Request) (api.AddRequest, error) {
	var req api.AddRequest
	if err := readBody(w, r, &req, "containerID", "ifname", "netns", "config"); err != nil {
		return req, err
	}
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

// readGC reads the body of a GC. Its list may be null, which is empty (libcni
// sends it so), but not absent: that would delete everything by a slip.
func readGC(w http.ResponseWriter, r *http.Request) (api.GCRequest, error) {
	var req api.GCRequest
	if err := readBody(w, r, &req, "network", "valid"); err != nil {
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
