package engine

// What those hear who wait for an owner on its way out: that nothing more can be tried
// for now, or that no hold of a kind is left (forget.go, await).

// note closes stuck once something of an owner, or of those who need it, has failed and
// nothing else can be tried. Engine.mu is held.
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

// isStuck reports whether stuck is closed. Engine.mu is held.
func (l *leaving) isStuck() bool {
	select {
	case <-l.stuck:
		return true
	default:
		return false
	}
}

// unstick opens stuck again for an owner of which something is tried anew, and for
// those that it needs. Engine.mu is held.
func (e *Engine) unstick(l *leaving) {
	if l == nil || !l.isStuck() {
		return
	}
	l.stuck = make(chan struct{})
	for _, id := range l.owner.Needs {
		e.unstick(e.leaving[id])
	}
}

// vacate tells who waits for it that no hold of a kind is left of an owner.
// Engine.mu is held.
func (l *leaving) vacate(kind string) {
	if gone := l.without[kind]; gone != nil && !l.has(kind) {
		close(gone)
		delete(l.without, kind)
	}
}

// has reports whether a hold of a kind is not given back yet. Engine.mu is held.
func (l *leaving) has(kind string) bool {
	for i, h := range l.owner.Holds {
		if h.Spec.Kind() == kind && !l.state[i].released {
			return true
		}
	}
	return false
}
