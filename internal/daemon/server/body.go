package server

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/cni/scan"
)

// bodyTime is how long a client may take to send a body, once its request has
// a place.
const bodyTime = 5 * time.Second

// Body reads the request's body into v, a pointer to a struct. The body has to be a single
// JSON object that has every required key, no key twice, and no key that v does not know. If no
// key is required, there may be no body, which counts as an empty object.
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
	if len(raw) == 0 && len(required) == 0 {
		return nil
	}
	return decode(raw, v, required...)
}

func decode(raw []byte, v any, required ...string) error {
	fields, err := scan.Object(raw)
	if err == nil {
		d := json.NewDecoder(bytes.NewReader(raw))
		d.DisallowUnknownFields()
		err = d.Decode(v)
	}
	if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) {
		return cni.Errorf(cni.CodeDecode, "the request is malformed", "its body: %s is %s; expected %s", fieldOf(wrong), aOr(wrong.Value), expected(wrong.Type))
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

// fieldOf names the part of a body that has a value of the wrong type.
func fieldOf(e *json.UnmarshalTypeError) string {
	if e.Field == "" {
		return "it"
	}
	return strconv.Quote(e.Field)
}

// aOr puts an article before JSON's word for a type.
func aOr(value string) string {
	if value == "array" || value == "object" {
		return "an " + value
	}
	return "a " + value
}

// expected says in JSON's words which values a type takes.
func expected(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer:
		return expected(t.Elem())
	case reflect.Struct:
		var keys []string
		for f := range t.Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			keys = append(keys, cmp.Or(name, f.Name))
		}
		return "an object with " + strings.Join(keys, ", ")
	case reflect.Slice, reflect.Array:
		return "an array"
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "a whole number of 0 or more"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return "a whole number"
	}
	return t.String()
}
