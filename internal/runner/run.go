package runner

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/runner/wire"
)

// find answers where a plugin is.
func (r *Runner) find(f wire.Find) (wire.Found, error) {
	folders, bad := r.checkFind(f)
	if bad != nil {
		return wire.Found{}, bad
	}
	path, err := r.search.find(f.Type, folders)
	return wire.Found{Path: path}, err
}

// run executes a plugin once. ctx ends when the client leaves.
func (r *Runner) run(ctx context.Context, req wire.Request) (a wire.Answer, err error) {
	folders, bad := r.checkFind(req.Find)
	if bad == nil {
		bad = r.check(req)
	}
	if bad != nil {
		return a, bad
	}
	verb, container := req.Env[wire.Command], req.Env[wire.ContainerID]
	about := req.Type + " " + verb
	arrived := time.Now()
	p, err := r.queue.enter(ctx, verb, container, about)
	if err != nil {
		return a, cni.Errorf(cni.CodeTryAgain, wire.MsgNoTurn, "%s: %v", about, err)
	}
	left := false
	defer func() {
		if !left {
			p.leave()
		}
	}()
	path, err := r.search.find(req.Type, folders)
	if err != nil {
		return a, err
	}
	rec, err := r.records.begin(container)
	if err != nil { // a DEL on a full disk must not wait for room
		r.log.Warn("if berth-runner is killed now, the next one cannot find what a plugin has started", "plugin", about, "err", err)
	}
	waited := time.Since(arrived)
	proc, err := r.start(ctx, path, r.environOf(req.Env, rec.token), req.Stdin)
	if err != nil {
		r.records.end(rec)
		return a, err
	}
	a = proc.finish(ctx, req.Timeout)
	a.Path, a.Waited = path, waited
	if a.Lingers {
		left = true
		r.outlast(proc, p, rec)
	} else {
		r.records.end(rec)
	}
	r.say(ctx, about, container, a)
	if r.ctx.Err() != nil && a.Exit < 0 && !a.TimedOut {
		return a, cni.Errorf(cni.CodeTryAgain, "a plugin was killed", "%s: %v", about, errStopping)
	}
	return a, nil
}

// outlast waits for a process that the kernel does not end. The container keeps its turn till then, since
// the process may go on in the middle of what it did. It has no place any more: it needs no processor,
// and a few such processes must not keep all other plugins from running.
func (r *Runner) outlast(proc *process, p *place, rec record) {
	p.leavePlace()
	go func() { // not in r.ends: nobody can wait for this
		<-proc.exited
		proc.reap(true)
		proc.drain()
		r.records.end(rec)
		p.leave()
	}()
}

// say logs an execution, as a warning if it was cut short.
func (r *Runner) say(ctx context.Context, about, container string, a wire.Answer) {
	result := fmt.Sprintf("exit status %d", a.Exit)
	switch {
	case a.Lingers:
		result = "killed, but has not ended"
	case a.Signal != "":
		result = a.Signal
	}
	pairs := []any{"plugin", about, "container", container, "result", result, "waited", a.Waited.Round(time.Microsecond), "ran", a.Ran.Round(time.Microsecond)}
	switch {
	case a.TimedOut:
		r.log.Warn("a plugin ran out of time", pairs...)
	case errors.Is(ctx.Err(), context.Canceled):
		r.log.Warn("a plugin was killed, because nobody waits for it", pairs...)
	default:
		r.log.Debug("a plugin has run", pairs...)
	}
}
