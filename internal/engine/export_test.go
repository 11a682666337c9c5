package engine

// Slow returns the holds whose releases have taken long (holdState.slow), by the texts of their specs.
func (e *Engine) Slow() map[string]bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := map[string]bool{}
	for _, l := range e.leaving {
		for i, s := range l.state {
			if s.slow {
				all[l.owner.Holds[i].Spec.String()] = true
			}
		}
	}
	return all
}
