package runner

import (
	"cmp"
	"context"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/runner/wire"
)

// Patience has a runner wait in other ways; what is 0 or nil stays as usual.
func (o *Options) Patience(draining, killing time.Duration, pause func(context.Context, time.Duration) bool, after func(time.Duration) <-chan time.Time) {
	p := usual
	p.draining, p.killing = cmp.Or(draining, p.draining), cmp.Or(killing, p.killing)
	if pause != nil {
		p.pause = pause
	}
	if after != nil {
		p.after = after
	}
	o.patiences = &p
}

// Looked has a runner call f when it has looked for leftovers, before it kills them.
func (o *Options) Looked(f func()) {
	p := usual
	p.looked = f
	o.patiences = &p
}

// BusyPauses is how many pauses there are between the tries to start a plugin that somebody writes.
var BusyPauses = len(busyPauses)

// Waiting returns how many requests wait.
func (r *Runner) Waiting() int {
	r.queue.mu.Lock()
	defer r.queue.mu.Unlock()
	return r.queue.waiting[others].Len() + r.queue.waiting[deletions].Len()
}

// Check decodes and checks a request, as the API does.
func Check(folders []string, raw []byte) (wire.Request, *api.Error) {
	r := &Runner{folders: folders}
	var req wire.Request
	if err := decode(raw, &req); err != nil {
		return req, numbered(err)
	}
	if _, err := r.checkFind(req.Find); err != nil {
		return req, err
	}
	return req, r.check(req)
}
