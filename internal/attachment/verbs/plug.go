package verbs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/answer"
	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/cni/netconf"
	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/networks"
	"github.com/berth-net/berth/internal/patience"
)

// Waits between tries to give a running pod the networks that it asks for, and how long one try may take.
const (
	plugFirst = time.Second
	plugMost  = 5 * time.Minute
	plugLimit = time.Minute
)

// plugs are the running pods whose networks may have to change, by namespace and name.
type plugs struct {
	mu   sync.Mutex
	pods map[string]*plug
	wake chan struct{}
}

// plug is one of these pods.
type plug struct {
	pod    api.Pod
	at     time.Time // of the next try
	failed int       // tries in a row
	runs   bool
	anew   bool // the pod has asked for something else since the try began
}

// Asked is told that a running pod asks for other networks than before. It waits for nobody.
func (v *Verbs) Asked(pod api.Pod) {
	v.plugs.mu.Lock()
	defer v.plugs.mu.Unlock()
	key := pod.Namespace + "/" + pod.Name
	if p := v.plugs.pods[key]; p != nil && p.runs {
		p.pod, p.anew = pod, true
		return
	}
	v.plugs.pods[key] = &plug{pod: pod}
	v.plugs.stir()
}

func (p *plugs) stir() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// begin has try called for each pod whose time has come, and returns how long it is until the next one's; 0: there is none.
func (p *plugs) begin(now time.Time, try func(key string, pod api.Pod)) (next time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, one := range p.pods {
		switch wait := one.at.Sub(now); {
		case one.runs:
		case wait <= 0:
			one.runs, one.anew = true, false
			try(key, one.pod)
		case next == 0 || wait < next:
			next = wait
		}
	}
	return next
}

// tried notes how a try has ended, and returns how long it is until the next one; 0: none is needed.
func (p *plugs) tried(key string, err error, now time.Time) (wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.stir()
	one := p.pods[key]
	one.runs = false
	switch {
	case one.anew:
		one.failed, one.at = 0, time.Time{}
	case err == nil:
		delete(p.pods, key)
	default:
		one.failed++
		wait = patience.Backoff(plugFirst, plugMost, one.failed)
		one.at = now.Add(wait)
	}
	return wait
}

// KeepPlugged gives running pods the networks that they ask for, and takes away those that they do not ask for any more, until ctx
// ends. It begins with all pods: they may have asked while no agent ran.
func (v *Verbs) KeepPlugged(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	heard := v.networks.Heard()
	try := func(key string, pod api.Pod) {
		all.Go(func() {
			err := v.Plug(ctx, &pod)
			if wait := v.plugs.tried(key, err, time.Now()); wait > 0 && ctx.Err() == nil {
				v.Log.Warn("a pod has not got the networks that it asks for", "pod", key, "err", err, "again", wait)
			}
		})
	}
	for ctx.Err() == nil {
		var later <-chan time.Time
		if next := v.plugs.begin(time.Now(), try); next > 0 {
			later = time.After(next)
		}
		select {
		case <-ctx.Done():
		case <-later:
		case <-v.plugs.wake:
		case <-heard:
			heard = nil
			for _, e := range v.index.All() {
				if pod := e.Record.Pod; pod != nil && !e.Record.Further() {
					v.Asked(*pod)
				}
			}
		}
	}
}

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
	err = v.join(ctx, e, lead, netns, false)
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
