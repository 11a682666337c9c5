package agent

import (
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kinds/flows"
)

// kinds lists what this agent can hold, in the order in which a restart
// verifies it: first what keeps dead pods' packets away, then the pods' links.
func (a *Agent) kinds() hold.Kinds {
	return hold.Kinds{
		a.egress.Kind(),
		a.routes.Kind(),
		flows.Kind(a.tracked),
		a.links.Kind(),
	}
}
