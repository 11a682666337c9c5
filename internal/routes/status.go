package routes

import (
	"net/http"

	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/daemon/server"
)

// statusOf returns the HTTP status of a CNI error code. Of all codes only 3 becomes 404.
func statusOf(code uint) int {
	switch code {
	case cni.CodeVersion, cni.CodeField, cni.CodeNetns:
		return http.StatusBadRequest
	case cni.CodeUnknown:
		return http.StatusNotFound
	case cni.CodeTaken, cni.CodeCheck:
		return http.StatusConflict
	case cni.CodeNotAvailable, cni.CodeLimited, cni.CodeExhausted:
		return http.StatusServiceUnavailable
	}
	return server.OwnStatus(code)
}
