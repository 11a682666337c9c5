package engine

// This file closes the channels that await (forget.go) waits for: leaving.stuck, when nothing more
// of an owner can be tried for now, and the channels in leaving.without, when no hold of a kind is
// left.

// note closes l.stuck once a release of the owner, or of an owner that needs it, has failed
// and nothing else of them can be tried for now. Engine.mu is held.
func (e *Engine) note(l *leaving) {
	failed := l.trouble.failed()
	pending := l.trouble.pending()
	for _, s := range l.state {
		failed = failed || s.trouble.failed()
		pending = pending || s.queued && !s.released && !s.trouble.failed()
	}
	for _, id := range e.Ledger.Needers(l.owner.ID) {
		needer := e.leaving[id]
		failed = failed || needer != nil && needer.isStuck()
		pending = pending || needer == nil || !needer.isStuck()
	}
	if !failed || pending || l.isStuck() {
		return
	}
	close(l.stuck)
	for _, id := range l.owner.Needs {
		if needed := e.leaving[id]; needed != nil {
			e.note(needed)
		}
	}
}

// isStuck reports whether l.stuck is closed. Engine.mu is held.
func (l *leaving) isStuck() bool {
	select {
	case <-l.stuck:
		return true
	default:
		return false
	}
}

// unstick gives an owner a new stuck channel, because something of the owner is tried anew,
// and does the same for the owners that it needs. Engine.mu is held.
func (e *Engine) unstick(l *leaving) {
	if l == nil || !l.isStuck() {
		return
	}
	l.stuck = make(chan struct{})
	for _, id := range l.owner.Needs {
		e.unstick(e.leaving[id])
	}
}

// vacate tells callers of WaitKind when the owner has no hold of a kind left. Engine.mu is held.
func (l *leaving) vacate(kind string) {
	if gone := l.without[kind]; gone != nil && !l.has(kind) {
		close(gone)
		delete(l.without, kind)
	}
}

// has reports whether the owner has a hold of a kind that is not given back yet. Engine.mu
// is held.
func (l *leaving) has(kind string) bool {
	for i, h := range l.owner.Holds {
		if h.Spec.Kind() == kind && !l.state[i].released {
			return true
		}
	}
	return false
}
