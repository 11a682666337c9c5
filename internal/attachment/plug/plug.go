// Package plug has running pods get the networks that they ask for while they run: it remembers which pods have asked, and tries again.
package plug

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/patience"
)

// Waits between tries to give a running pod the networks that it asks for.
const (
	firstWait = time.Second
	mostWait  = 5 * time.Minute
)

// Options of New.
type Options struct {
	Log *slog.Logger
	// Plug gives a running pod the networks that it asks for, and takes the others away (verbs.Verbs.Plug).
	Plug func(context.Context, *api.Pod) error
	// Heard returns a channel that is closed once the cluster has said which pods the node has; nil: it never will.
	Heard func() <-chan struct{}
	// Pods returns the pods that are attached.
	Pods func() []api.Pod
}

// Plugger calls Plug for pods that ask for other networks than before, one try at a time for each pod, until it succeeds.
type Plugger struct {
	Options
	plugs
}

// New returns a Plugger.
func New(o Options) *Plugger {
	return &Plugger{o, plugs{pods: map[string]*plug{}, wake: make(chan struct{}, 1)}}
}

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
func (p *Plugger) Asked(pod api.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := pod.Namespace + "/" + pod.Name
	if one := p.pods[key]; one != nil && one.runs {
		one.pod, one.anew = pod, true
		return
	}
	p.pods[key] = &plug{pod: pod}
	p.stir()
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
		wait = patience.Backoff(firstWait, mostWait, one.failed)
		one.at = now.Add(wait)
	}
	return wait
}

// KeepPlugged gives running pods the networks that they ask for, and takes away those that they do not ask for any more, until ctx
// ends. It begins with all pods: they may have asked while no agent ran.
func (p *Plugger) KeepPlugged(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	heard := p.Heard()
	try := func(key string, pod api.Pod) {
		all.Go(func() {
			err := p.Plug(ctx, &pod)
			if wait := p.tried(key, err, time.Now()); wait > 0 && ctx.Err() == nil {
				p.Log.Warn("a pod has not got the networks that it asks for", "pod", key, "err", err, "again", wait)
			}
		})
	}
	for ctx.Err() == nil {
		var later <-chan time.Time
		if next := p.begin(time.Now(), try); next > 0 {
			later = time.After(next)
		}
		select {
		case <-ctx.Done():
		case <-later:
		case <-p.wake:
		case <-heard:
			heard = nil
			for _, pod := range p.Pods() {
				p.Asked(pod)
			}
		}
	}
}
