package verbs

import (
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/hold"
)

// trail writes the line that a verb leaves in the log of one attachment. The time that it says
// is the client's: from when the client's program ran until the verb is done.
func (v *Verbs) trail(what string, about []any, w daemon.When) {
	v.Log.Info(what, append(about, "took", time.Duration(v.Boottime()-w.Latest()).Round(time.Microsecond))...)
}

// going are the attachments that a verb releases. The map keeps entries that the index may forget
// before the verb is done.
type going map[hold.ID]*attachment.Entry

// add notes attachments, and returns them.
func (g going) add(es []*attachment.Entry) []*attachment.Entry {
	for _, e := range es {
		g[e.Owner.ID] = e
	}
	return es
}

// trailOf writes a line for each attachment with one of these ids.
func (v *Verbs) trailOf(what string, ids []hold.ID, g going, w daemon.When) {
	for _, id := range ids {
		e := g[id]
		if e == nil { // the ledger lacked the attachment when the verb began
			e = v.index.Get(id)
		}
		about := []any{"id", id}
		if e != nil {
			about = e.About()
		}
		v.trail(what, about, w)
	}
}

// aboutFilter returns what the log says of a deletion that names no attachment.
func aboutFilter(f api.Filter) []any {
	return attachment.AboutKey(attachment.Key{Network: f.Network, ContainerID: f.Container, Ifname: f.Ifname},
		&api.Pod{Namespace: f.Namespace, Name: f.Pod})
}
