package views

import (
	"slices"
	"strings"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/show"
)

// List returns the attachments that match a filter, the oldest first.
func (v *Views) List(f api.Filter) []api.Attachment {
	var list []api.Attachment
	for _, e := range v.index.Matching(f) {
		if at := v.show(e); f.State == "" || f.State == at.State {
			list = append(list, at)
		}
	}
	slices.SortFunc(list, func(x, y api.Attachment) int {
		if c := x.Created.Compare(y.Created); c != 0 {
			return c
		}
		return strings.Compare(x.ID, y.ID)
	})
	return list
}

// Get returns the attachment of an id, and false if there is none.
func (v *Views) Get(id hold.ID) (api.Attachment, bool) {
	e := v.index.Get(id)
	if e == nil {
		return api.Attachment{}, false
	}
	return v.show(e), true
}

// state returns the API's word for how far an attachment is on its way in or out.
func (v *Views) state(e *attachment.Entry, owed []engine.Owed) string {
	switch {
	case len(owed) > 0:
		return api.StateOwed
	case !e.Owner.Wanted():
		return api.StateReleasing
	case v.Engine.Taking(e.Owner.ID):
		return api.StateAttaching
	}
	return api.StateAttached
}

func (v *Views) show(e *attachment.Entry) api.Attachment {
	owed := v.Engine.Owed(e.Owner.ID)
	at := show.Attachment(e)
	at.State = v.state(e, owed)
	for _, o := range owed {
		at.Owed = append(at.Owed, owedView(o))
	}
	return at
}
