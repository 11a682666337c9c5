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

// Body reads the request's body into v, a pointer to a struct. The body has to be a single
// JSON object that has every required key, no key twice, and no key that v does not know.
func (r *Request) Body(v any, required ...string) error {
	conn := http.NewResponseController(r.w)
	// SetReadDeadline fails only for a connection without deadlines, such as a test's.
	_ = conn.SetReadDeadline(time.Now().Add(bodyTime))
	raw, err := io.ReadAll(http.MaxBytesReader(r.w, r.http.Body, api.MaxBody))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return &statusError{http.StatusRequestEntityTooLarge,
			cni.Errorf(cni.CodeDecode, "the request is too large", "a body has at most %d bytes", api.MaxBody)}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return cni.Errorf(cni.CodeTryAgain, "the request did not arrive", "its body did not arrive within %v", bodyTime)
	case err != nil:
		return cni.Errorf(cni.CodeDecode, "the request did not arrive", "reading its body: %v", err)
	}
	// From here on the server reads only to notice when the client leaves.
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
		return cni.Errorf(cni.CodeDecode, "the request is malformed", "its body: %v", err)
	}
	for _, key := range required {
		if !slices.ContainsFunc(fields, func(f scan.Field) bool { return f.Key == key }) {
			return cni.Errorf(cni.CodeConfig, "the request is incomplete", "its body lacks %q", key)
		}
	}
	return nil
}
