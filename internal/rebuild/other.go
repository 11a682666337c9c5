package rebuild

import (
	"errors"
	"fmt"

	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/stamp"
)

// ErrOtherInstance says that the state folder is not the one from which an agent served last, and
// that pods of that agent are still here.
var ErrOtherInstance = errors.New("the state folder is not the one from which an agent served here last")

// refuseOther refuses a state folder that was put, or mounted, in the place of the one from
// which an agent served in this epoch, while pods of that agent are here: this folder's instance id
// and ledger assign them to nobody. Pods that queued deletions name do not count:
// the deletions adopt them.
func (r *Rebuild) refuseOther() error {
	entered, was, err := daemon.ReadMarker(r.Root)
	if err != nil {
		return err
	}
	if _, bad := hold.ParseID(was); bad != nil || was == r.Instance || entered != r.Epoch {
		return nil
	}
	links, err := r.node.LinksOf(was)
	if err != nil {
		return fmt.Errorf("looking for the links of the agent that served here last: %w", err)
	}
	left, err := r.undoomed(links)
	if err != nil {
		return err
	}
	marker := r.Root.Epoch()
	if len(left) == 0 {
		r.Log.Warn("the state folder is not the one from which an agent served here last; none of that agent's pods is left, but its table and routes may be",
			"instance", r.Instance, "was", was, "table", stamp.Table(was))
		return nil
	}
	return fmt.Errorf("%w, and that agent's pods have links on the node (%d, such as %s): %s says %s, but %s says %s: "+
		"unmount what covers the former folder, or put that folder back; or delete these pods, and then start the agent; "+
		"or remove %s, if nobody will ever delete these pods",
		ErrOtherInstance, len(left), left[0].Name, r.Root.Instance(), r.Instance, marker, was, marker)
}
