package server

import (
	"context"
	"errors"
	"net/http"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
)

// statusError is an error whose HTTP status does not follow from its code.
type statusError struct {
	status int
	err    *api.Error
}

func (e *statusError) Error() string { return e.err.Error() }

// toAnswer turns any error of a Call into an answer. It is the one place where errors meet
// HTTP.
func toAnswer(err error) *Answer {
	var special *statusError
	if errors.As(err, &special) {
		return &Answer{special.status, special.err}
	}
	e := numbered(err)
	return &Answer{StatusOf(e.Code), e}
}

// numbered returns an error as an *api.Error, and gives it a code if it has none.
func numbered(err error) *api.Error {
	var e *api.Error
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, errRestoring), errors.Is(err, errStopping), errors.Is(err, errBacklog):
		return cni.Errorf(cni.CodeTryAgain, "the agent is not available", "%v", err)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return cni.Errorf(cni.CodeTryAgain, "out of time", "%v", err)
	}
	return cni.Errorf(cni.CodeInternal, "internal error", "%v", err)
}

// StatusOf returns the HTTP status of an error code. Code 3 is the only code that becomes 404. The
// answer to an unknown path is 404 as well, but has code 4 (see noPath).
func StatusOf(code uint) int {
	switch code {
	case cni.CodeVersion, cni.CodeField, cni.CodeEnv, cni.CodeDecode, cni.CodeConfig, cni.CodeNetns:
		return http.StatusBadRequest
	case cni.CodeUnknown:
		return http.StatusNotFound
	case cni.CodeTaken, cni.CodeCheck:
		return http.StatusConflict
	case cni.CodeTryAgain, cni.CodeNotAvailable, cni.CodeLimited, cni.CodeExhausted:
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

// results are the labels of answers in metrics.
var results = []string{"ok", "owed", "unknown", "refused", "again", "failed"}

// outcome is an answer's label in metrics, one of results.
func outcome(a *Answer) string {
	switch {
	case a.Status == http.StatusPartialContent:
		return "owed"
	case a.Status < 400:
		return "ok"
	case a.Status == http.StatusNotFound:
		return "unknown"
	case a.Status < 500:
		return "refused"
	case a.Status == http.StatusServiceUnavailable:
		return "again"
	}
	return "failed"
}
