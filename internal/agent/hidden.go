package agent

import "context"

// exposed is told that masquerade may have been missing, and is there again.
func (a *Agent) exposed() {
	select {
	case a.unhidden <- struct{}{}:
	default:
	}
}

// keepHidden forgets, whenever masquerade may have been missing, the connections
// that began meanwhile: they would leave with pods' addresses for as long as they
// send. It ends with ctx.
func (a *Agent) keepHidden(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.unhidden:
		}
		r := a.ruleset()
		if !r.Masquerade {
			continue
		}
		if err := a.tracked.ForgetUnhidden(r.Pools, r.Excluded); err != nil {
			a.Log.Warn("connections may go on without masquerade that began while the table was away", "err", err)
		}
	}
}
