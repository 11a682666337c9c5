package verbs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/answer"
	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/cni/netconf"
	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/networks"
)

// plugLimit is how long one Plug may take.
const plugLimit = time.Minute

// Plug gives a running pod the networks that it asks for, and takes away those that it does not ask for any more. A pod that is not
// attached, or that is going, gets none: its ADD asks what it asks for. A pod that a former CNI attached keeps what it has: its interfaces
// are known by that CNI's names of their networks.
func (v *Verbs) Plug(ctx context.Context, pod *api.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, plugLimit)
	defer cancel()
	var errs []error
	for _, e := range v.index.All() {
		is := e.Record.Pod
		if is == nil || is.Namespace != pod.Namespace || is.Name != pod.Name || pod.UID != "" && is.UID != "" && is.UID != pod.UID || e.Record.Further() || e.Record.Former {
			continue
		}
		errs = append(errs, v.plugBeside(ctx, e))
	}
	return errors.Join(errs...)
}

// plugBeside is Plug for the networks beside one first attachment.
func (v *Verbs) plugBeside(ctx context.Context, e *attachment.Entry) error {
	unlock, err := v.keys.Take(ctx, e.Record.Key)
	if err != nil {
		return err
	}
	defer unlock()
	if err := v.drain.Key(ctx, e.Record.Key); err != nil {
		return err
	}
	e = v.index.Get(e.Owner.ID)
	if e == nil || !e.Owner.Wanted() || v.Engine.Doomed(e.Owner.ID) || e.Record.Epoch != v.Epoch {
		return nil
	}
	netns, err := v.open(e.Record.Netns)
	if errors.Is(err, ns.ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer netns.Close()
	r := e.Record
	all, err := v.networks.Of(ctx, &netconf.Conf{Name: r.Network, Mode: r.Mode, Networks: r.Networks}, networks.Pod{Pod: r.Pod, Ifname: r.Ifname, Args: argsOf(r), Has: v.hasNetwork(e.Owner.ID)})
	if err != nil {
		return err
	}
	lead := &addition{record: r, further: all[1:], when: daemon.When{Started: v.Boottime()}}
	lead.record.Created, lead.record.Made, lead.record.Started = v.Wall(), v.Boottime(), v.Boottime()
	err = v.join(ctx, e, lead, netns, false, nil)
	if now := v.index.Get(e.Owner.ID); now == nil || !now.Owner.Wanted() {
		return nil // the pod goes
	}
	return answer.Numbered(err)
}

// hasNetwork returns a function that reports whether a network has joined a pod's first one.
func (v *Verbs) hasNetwork(first hold.ID) func(label, ifname string) bool {
	return func(label, ifname string) bool {
		return slices.ContainsFunc(v.index.Further(first), func(e *attachment.Entry) bool {
			return e.Owner.Wanted() && !v.Engine.Doomed(e.Owner.ID) && e.Record.Label() == label && e.Record.Ifname == ifname
		})
	}
}

// argsOf returns CNI_ARGS for a pod as runtimes of Kubernetes pass it.
func argsOf(r attachment.Record) string {
	args := []string{"IgnoreUnknown=1"}
	for _, a := range []struct{ key, value string }{
		{"K8S_POD_NAMESPACE", r.Pod.Namespace}, {"K8S_POD_NAME", r.Pod.Name}, {"K8S_POD_INFRA_CONTAINER_ID", r.Pod.InfraContainer}, {"K8S_POD_UID", r.Pod.UID},
	} {
		if a.value != "" {
			args = append(args, fmt.Sprintf("%s=%s", a.key, a.value))
		}
	}
	return strings.Join(args, ";")
}
