package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/test/programs"
)

// agent is a berthd that bench measures.
type agent struct{ *programs.Agent }

func startAgent(ctx context.Context, bin, root string, pools []string) (*agent, error) {
	a, err := programs.StartAgent(ctx, bin, root, pools...)
	if err != nil {
		a.Stop()
		return nil, err
	}
	return &agent{a}, nil
}

// apiClients is how many requests are under way at once when bench asks the agent directly,
// without executing the plugin.
const apiClients = 16

// apiNetwork is the network of attachments that are made directly by the API.
const apiNetwork = "bench-api"

// attach makes an attachment in each pod by the agent's API.
func (a *agent) attach(ctx context.Context, ps []*pod) (apiFigures, error) {
	took, wall, err := together(apiClients, ps, func(p *pod) (time.Duration, error) { return a.post(ctx, p) })
	return apiFigures{took, wall}, err
}

// detach deletes the attachments of pods by the agent's API. detach returns when the agent has
// answered, even if links are left.
func (a *agent) detach(ctx context.Context, ps []*pod) (apiFigures, error) {
	took, wall, err := together(apiClients, ps, func(p *pod) (time.Duration, error) { return a.delete(ctx, p) })
	return apiFigures{took, wall}, err
}

// apiFigures says how long many requests took, each of them and all together.
type apiFigures struct {
	took []time.Duration
	wall time.Duration
}

// spends calls f, and returns its figures and the processor time that the agent took
// meanwhile.
func (a *agent) spends(f func() (apiFigures, error)) (apiFigures, time.Duration, error) {
	before, err := a.CPU()
	if err != nil {
		return apiFigures{}, 0, err
	}
	figures, err := f()
	if err != nil {
		return apiFigures{}, 0, err
	}
	after, err := a.CPU()
	return figures, after - before, err
}

// perSecond returns how many things a second came, if n things came in the time wall.
func perSecond(n int, wall time.Duration) float64 { return float64(n) / wall.Seconds() }

// containerOf returns the container id of a pod for attachments that are made by the API.
func containerOf(p *pod) string { return fmt.Sprintf("api-%d", p.ref.ID) }

// post makes the request that berth-cni makes for ADD.
func (a *agent) post(ctx context.Context, p *pod) (time.Duration, error) { return a.postAs(ctx, p, "") }

// postAs is post for a pod of a cluster, which args (CNI_ARGS) name.
func (a *agent) postAs(ctx context.Context, p *pod, args string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	begun := time.Now()
	_, err := a.API.Add(ctx, api.AddRequest{
		ContainerID: containerOf(p),
		Ifname:      ifname,
		Netns:       api.Netns(p.ref),
		Args:        args,
		Config: json.RawMessage(fmt.Sprintf(`{"cniVersion": "1.1.0", "name": %q, "type": "berth-cni", "root": %q}`,
			apiNetwork, a.Root)),
	})
	if err != nil {
		return 0, fmt.Errorf("adding %s: %w", p.ref.Path, err)
	}
	return time.Since(begun), nil
}

// delete makes the request that berth-cni makes for DEL.
func (a *agent) delete(ctx context.Context, p *pod) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	begun := time.Now()
	got, err := a.API.Delete(ctx, api.Filter{Network: apiNetwork, Container: containerOf(p), Ifname: ifname}, false)
	if err != nil {
		return 0, fmt.Errorf("deleting %s: %w", p.ref.Path, err)
	}
	if got.Released != 1 || got.Owed != 0 {
		return 0, fmt.Errorf("deleting %s: released %d, owed %d", p.ref.Path, got.Released, got.Owed)
	}
	return time.Since(begun), nil
}

// idle waits until no attachment of a network is being released.
func (a *agent) idle(ctx context.Context, network string) error {
	for {
		left, err := a.API.List(ctx, api.Filter{Network: network, State: "releasing"})
		if err != nil || len(left) == 0 {
			return err
		}
		time.Sleep(time.Millisecond)
	}
}
