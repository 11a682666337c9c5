package views

import (
	"strings"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/show"
)

// Happened publishes an event of the engine (Tell).
func (v *Views) Happened(ev engine.Event) {
	if v.ground.Renews(ev) {
		return
	}
	if ev.Type == engine.Mended {
		about := []any{"id", ev.Owner.ID}
		if e := v.index.Decode(ev.Owner); e != nil {
			about = e.About()
			v.traffic.Mended(ev.Kind, e.Interface.Addresses)
		}
		v.Meter.Repaired(ev.Kind)
		v.Log.Info("mended what had changed", append(about, "kind", ev.Kind, "was", ev.Err)...)
	}
	v.Tell(string(ev.Type), ev.Owner, ev.Kind, ev.Err)
	if ev.Past != nil && ev.Past.Forget != nil { // the attachment has ended later than its record says, and the record lacks the reason
		v.remember(ev, v.history.Correct)
	}
}

// Tell publishes an event about an owner, with what the API shows of the owner. typ is the
// API's type of the event; kind and err say what failed or drifted, if anything did. kind may
// be "" if err says all.
func (v *Views) Tell(typ string, o hold.Owner, kind string, err error) {
	if v.Event == nil {
		return
	}
	out := api.Event{Type: typ, Owner: string(o.ID)}
	if err != nil {
		out.Message = strings.TrimPrefix(kind+": "+err.Error(), ": ")
	}
	if e := v.index.Decode(o); e != nil { // not Get: the index may lack the owner by now
		at := show.Attachment(e)
		at.State = eventState[typ]
		out.Attachment = &at
	}
	v.Event(out)
}

var eventState = map[string]string{
	api.EventAttaching: api.StateAttaching, api.EventAttached: api.StateAttached, api.EventDrift: api.StateAttached, api.EventMended: api.StateAttached,
	api.EventReleasing: api.StateReleasing, api.EventReleased: api.StateReleasing, api.EventOwed: api.StateOwed,
}
