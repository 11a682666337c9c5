package engine

// What those hear who wait for an owner on its way out: that nothing more can be tried
// for now, or that no hold of a kind is left (forget.go, await).

// note closes stuck once something of an owner, or of its children, has failed and
// nothing else can be tried. Engine.mu is held.
func (e *Engine) note(l *leaving) {
	failed := l.trouble.failed()
	pending := l.trouble.pending()
	for _, s := range l.state {
		failed = failed || s.trouble.failed()
		pending = pending || s.queued && !s.released && !s.trouble.failed()
	}
	for _, id := range e.Ledger.Children(l.owner.ID) {
		child := e.leaving[id]
		failed = failed || child != nil && child.isStuck()
		pending = pending || child == nil || !child.isStuck()
	}
	if !failed || pending || l.isStuck() {
		return
	}
	close(l.stuck)
	if parent := e.leaving[l.owner.Parent]; parent != nil {
		e.note(parent)
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
// those who stand below it. Engine.mu is held.
func (e *Engine) unstick(l *leaving) {
	for ; l != nil && l.isStuck(); l = e.leaving[l.owner.Parent] {
		l.stuck = make(chan struct{})
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
