package cli

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/boottime"
	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/deletions"
	"github.com/berth-net/berth/internal/history"
	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/mode"
	"github.com/berth-net/berth/internal/mode/routed"
	"github.com/berth-net/berth/internal/show"
)

// pastsAway is pasts without an agent: it reads the ledger, the queue of deletions, and
// the history's files.
func (a *app) pastsAway(f api.PastFilter) (list []api.Past, end api.PastEnd, err error) {
	list = []api.Past{}
	living := map[string]bool{}
	s, err := ledger.Read(a.dir().Ledger(), kinds)
	if err != nil {
		a.none("berth: pods that are still attached are missing here: %s", oneLine(err))
		s = new(ledger.Snapshot)
	}
	now := history.Now{Wall: a.now(), Boot: bootID(), Boottime: boottime.Now()}
	for _, p := range a.ledgerPasts(s, now) {
		living[p.Attachment.ID] = true
		if f.Matches(p) {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, func(x, y api.Past) int { return y.Attachment.Created.Compare(x.Attachment.Created) })
	limits := config.DefaultHistory
	if c, err := config.Load(a.dir(), config.Flags{Remove: true}); err == nil {
		limits = c.History
	}
	all := f
	all.Limit = 0
	r := history.Read(a.dir(), history.Limits{Records: limits.Records, Age: limits.Age}, now, all)
	defer r.Close()
	for f.Limit == 0 || len(list) < f.Limit {
		p, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return list, end, fmt.Errorf("reading the history: %w", err)
		}
		if !living[p.Attachment.ID] {
			list = append(list, p)
		}
	}
	end.Damaged = r.Damaged()
	if f.Limit > 0 {
		list = list[:min(len(list), f.Limit)]
	}
	return list, end, nil
}

// ledgerPasts returns what the ledger and the queue of deletions say of the attachments that the
// ledger has.
func (a *app) ledgerPasts(s *ledger.Snapshot, now history.Now) (list []api.Past) {
	survey, err := deletions.Look(a.dir())
	if err != nil {
		a.none("berth: deletions that are queued may be missing here: %s", oneLine(err))
	}
	waiting := map[attachment.Key][]deletions.Entry{}
	for _, e := range survey.Pending {
		k := e.Record.Key()
		waiting[k] = append(waiting[k], e)
	}
	index := attachment.NewIndex()
	index.Describe(mode.Modes{routed.New(routed.Options{})}.Interface)
	for _, o := range s.Owners {
		e := index.Decode(o)
		if e == nil {
			continue
		}
		p := api.Past{Attachment: show.Attachment(e)}
		if len(p.Attachment.Addresses) == 0 { // the attachment's record does not say its addresses
			p.Attachment.Addresses = o.NamesIn(ipam.Space)
		}
		p.Attachment.State = api.StateReleasing
		if was := o.Earlier; was != nil {
			addQueued(&p, attachment.Queued{At: was.Asked, Cut: was.Cut})
		}
		if o.Wanted() {
			p.Attachment.State = api.StateAttached
			addQueued(&p, e.Record.Queued(waiting[e.Record.Key], now.Wall, now.Boot, now.Boottime))
		}
		list = append(list, p)
	}
	return list
}

// addQueued adds to p what the queue says, or said, of p's deletion.
func addQueued(p *api.Past, q attachment.Queued) {
	if q.At.IsZero() {
		return
	}
	p.AskedBy, p.Queued = api.AskedQueued, &q.At
	if !q.Cut.IsZero() {
		p.CutOff, p.CutByPlugin = &q.Cut, true
	}
}
