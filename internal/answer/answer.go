// Package answer gives the errors of the rooms below their CNI numbers (CNI 1.1, section
// 5). An error that has a number already keeps it.
package answer

import (
	"context"
	"errors"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/runner/client"
)

// Numbered gives a verb's error its CNI number; nil stays nil.
func Numbered(err error) error {
	var numbered *api.Error
	var exhausted *ipam.ExhaustedError
	var address *ipam.AddrError
	var taken *ledger.NameTakenError
	var plugin *types.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &numbered):
		return numbered
	case errors.As(err, &plugin) && plugin.Code != 0: // another plugin's, such as of a network that Berth delegates
		return cni.Errorf(plugin.Code, plugin.Msg, "%v", err)
	case errors.Is(err, client.ErrAway):
		return cni.Errorf(cni.CodeTryAgain, "other plugins cannot be executed", "%v", err)
	case errors.As(err, &exhausted):
		return cni.Errorf(cni.CodeExhausted, "pool exhausted", "%v", err)
	case UnknownPool(err):
		return cni.Errorf(cni.CodeConfig, "unknown pool", "%v", err)
	case errors.As(err, &address), errors.As(err, &taken):
		return cni.Errorf(cni.CodeTaken, "address not available", "%v", err)
	case errors.Is(err, ledger.ErrFull):
		return cni.Errorf(cni.CodeIO, "the ledger has no room for this", "%v", err)
	case errors.Is(err, ledger.ErrBuried), errors.Is(err, ledger.ErrNeeds), errors.Is(err, engine.ErrOvertaken):
		return cni.Errorf(cni.CodeTryAgain, "a DEL of the same attachment overtook this request", "%v", err)
	case errors.Is(err, hold.ErrGoing):
		return cni.Errorf(cni.CodeTryAgain, "a deletion of the same attachment waits, or may wait", "%v", err)
	case errors.Is(err, hold.ErrForeign):
		return cni.Errorf(cni.CodeTaken, "the interface or address belongs to another owner", "%v", err)
	case errors.Is(err, hold.ErrHomeless):
		return cni.Errorf(cni.CodeNetns, "the pod's network namespace is gone", "%v", err)
	case errors.Is(err, engine.ErrReachable):
		return cni.Errorf(cni.CodeTryAgain, cni.MsgReachable, "%v", err)
	case errors.Is(err, kernel.ErrBusy): // such as programs in the pod that use its former interfaces
		return cni.Errorf(cni.CodeTryAgain, "something is still in use", "%v", err)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return cni.Errorf(cni.CodeTryAgain, "out of time", "%v", err)
	}
	return cni.Errorf(cni.CodeInternal, "failed", "%v", err)
}

// Exhausted reports whether an error says that a pool has no free address.
func Exhausted(err error) bool {
	var full *ipam.ExhaustedError
	return errors.As(err, &full)
}

// UnknownPool reports whether an error says that there is no pool of a name.
func UnknownPool(err error) bool { return errors.Is(err, ipam.ErrUnknownPool) }
