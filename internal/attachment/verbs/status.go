package verbs

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/answer"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/cni/netconf"
	"github.com/berth-net/berth/internal/mode"
)

// readyTime is how long a STATUS waits for other plugins and for the API server, all together: berth-cni waits for 5 seconds.
const readyTime = 3500 * time.Millisecond

// Ready says whether the networks that a configuration gives to each pod are ready (CNI 1.1, section 4, STATUS): what makes them
// is known, and their plugins say so. It asks them one after the other, so that plugins that hang occupy one of berth-runner's
// places. Its error names all that are not ready, with code 51 if one of them says that pods that are attached may not be connected
// either, and else with code 50.
func (v *Verbs) Ready(ctx context.Context, req api.StatusRequest) error {
	conf, bad := netconf.Parse(req.Config)
	if bad != nil {
		return bad
	}
	ctx, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	all, err := v.networks.Common(ctx, conf)
	if err != nil {
		return unavailable(err)
	}
	code, says := uint(cni.CodeNotAvailable), []string(nil)
	for _, n := range all {
		m, err := v.modes.Of(n.Conf.Mode)
		if err != nil {
			return cni.Errorf(cni.CodeConfig, "invalid configuration", "%s: %v", n, err)
		}
		x, ok := m.(mode.Executor)
		if !ok {
			continue
		}
		err = x.Ready(ctx, n.Conf)
		var said *types.Error
		if errors.As(err, &said) && said.Code == cni.CodeLimited {
			code = cni.CodeLimited
		}
		if err != nil {
			says = append(says, n.String()+": "+err.Error())
		}
	}
	if len(says) > 0 {
		return cni.Errorf(code, "a network is not ready for pods", "%s", strings.Join(says, "\n"))
	}
	return nil
}

// unavailable is the error of a STATUS for what an ADD would say: the runtime may try an ADD again, but asks STATUS whether that is of use.
func unavailable(err error) error {
	var numbered *api.Error
	if errors.As(answer.Numbered(err), &numbered) && numbered.Code == cni.CodeTryAgain {
		return cni.Errorf(cni.CodeNotAvailable, numbered.Msg, "%s", numbered.Details)
	}
	return answer.Numbered(err)
}
