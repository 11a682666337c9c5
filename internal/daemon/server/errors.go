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
func (s *Server) toAnswer(err error) *Answer {
	var special *statusError
	if errors.As(err, &special) {
		return &Answer{special.status, special.err}
	}
	e := numbered(err)
	return &Answer{s.status(e.Code), e}
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

// OwnStatus returns the HTTP status of a code that the server itself gives its errors; of any
// other code it is 500. Options.Status gives the statuses of the daemon's codes.
func OwnStatus(code uint) int {
	switch code {
	case cni.CodeEnv, cni.CodeDecode, cni.CodeConfig:
		return http.StatusBadRequest
	case cni.CodeTryAgain:
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
