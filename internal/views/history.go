package views

import (
	"context"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/history"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/show"
)

// openHistory makes the history. It touches no file before there is something to write.
func (v *Views) openHistory() {
	v.history = history.New(history.Options{
		Dir: history.Path(v.Root),
		Log: v.Log,
		Limits: func() history.Limits {
			c := v.ground.Config()
			return history.Limits{Records: c.History.Records, Age: c.History.Age}
		},
		Now: func() history.Now { return history.Now{Wall: v.Wall(), Boot: v.Boot, Boottime: v.Boottime()} },
	})
}

// KeepHistory writes down what became of attachments, until ctx ends.
func (v *Views) KeepHistory(ctx context.Context) { v.history.Keep(ctx) }

// CloseHistory writes down what is left. It waits for the disk for a second at most.
func (v *Views) CloseHistory() { v.history.Close() }

// RemoveHistory removes the history. Afterwards nothing may be written.
func (v *Views) RemoveHistory() error {
	_, err := history.Remove(v.Root)
	return err
}

// RestoreHistory notes which attachments a former run has promised to release. The former run may
// have written records of these attachments, and have died before the ledger forgot them. The
// caller calls RestoreHistory when the index has what the ledger had at the start.
func (v *Views) RestoreHistory() {
	inherited := map[string]bool{}
	for _, e := range v.index.All() {
		if !e.Owner.Wanted() {
			inherited[string(e.Owner.ID)] = true
		}
	}
	v.inherited = sync.OnceValue(func() map[string]api.Past {
		if len(inherited) == 0 {
			return nil
		}
		return v.history.Find(inherited)
	})
}

// Ends writes the records of attachments that the ledger is about to forget (engine.Options). As
// long as the ledger has an attachment, readers leave out its record.
func (v *Views) Ends(evs []engine.Event) {
	for _, ev := range evs {
		v.remember(ev, v.history.Add)
	}
	v.history.Settle()
}

// remember hands the record of an attachment that ends to `take`, which puts the record into the
// history. If a former run wrote a record of the attachment, that record knows more.
func (v *Views) remember(ev engine.Event, take func(api.Past)) {
	e := v.index.Decode(ev.Owner)
	if e == nil {
		return
	}
	at := show.Attachment(e)
	at.State = eventState[string(ev.Type)]
	past, ended := pastOf(at, *ev.Past), v.Wall()
	if ev.Past.Asker == "" {
		if was, known := v.inherited()[at.ID]; known {
			past, take = was, v.history.Correct
		}
	}
	past.Ended = &ended
	take(past)
}

// pastOf shows how the release of an attachment went.
func pastOf(at api.Attachment, p engine.Past) api.Past {
	if p.Asker == "" && !p.Earlier.Asked.IsZero() { // a former run took the deletion from the queue
		p.Asker = api.AskedQueued
	}
	past := api.Past{
		Attachment: at, AskedBy: p.Asker, Failed: message(p.Failed),
		Queued: moment(p.Earlier.Asked), CutOff: moment(p.Cut), CutError: message(p.CutErr), Holds: make([]api.PastHold, 0, len(p.Holds)+1),
	}
	if cut := moment(p.Earlier.Cut); cut != nil {
		past.CutOff, past.CutByPlugin = cut, true
	}
	for _, h := range p.Holds {
		past.Holds = append(past.Holds, holdOf(h.Hold.Spec.Kind(), h.Hold.Spec.String(), h.Released, h.Trouble))
	}
	if p.Forget != nil {
		past.Holds = append(past.Holds, holdOf("ledger", "the attachment's end", time.Time{}, p.Forget))
	}
	return past
}

func holdOf(kind, what string, released time.Time, t *engine.PastTrouble) api.PastHold {
	h := api.PastHold{Kind: kind, What: what, Released: moment(released)}
	if t != nil {
		h.Failures, h.Since, h.Error = t.Tries, moment(t.Since), message(t.Err)
	}
	return h
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// moment returns nil for the zero time.
func moment(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// History returns a reader of the attachments that a filter matches: first those that are in
// the ledger, the youngest first, and then those that are gone, the last to end first.
func (v *Views) History(f api.PastFilter) api.PastReader {
	r := &pasts{filter: f, views: v, living: map[string]bool{}}
	for _, e := range v.index.All() { // before the reader of the gone attachments begins, so that no attachment is left out
		r.living[string(e.Owner.ID)] = true
		r.attached = append(r.attached, e)
	}
	slices.SortFunc(r.attached, func(x, y *attachment.Entry) int {
		if c := y.Record.Created.Compare(x.Record.Created); c != 0 {
			return c
		}
		return strings.Compare(string(x.Owner.ID), string(y.Owner.ID))
	})
	return r
}

// pasts is the api.PastReader of a history.
type pasts struct {
	filter   api.PastFilter
	views    *Views
	living   map[string]bool // the ids of the attachments that the ledger had when the reading began
	attached []*attachment.Entry
	found    int
	gone     *history.Reader // nil: not begun
}

// Next returns the next attachment, and io.EOF after the last one.
func (r *pasts) Next() (api.Past, error) {
	for len(r.attached) > 0 && !r.full() {
		e := r.attached[0]
		r.attached = r.attached[1:]
		if p := r.views.present(e); r.filter.Matches(p) {
			r.found++
			return p, nil
		}
	}
	if r.gone == nil {
		f := r.filter
		f.Limit = 0 // full also counts the attachments that the ledger had
		r.gone = r.views.history.Read(f)
	}
	for !r.full() {
		p, err := r.gone.Next()
		if err != nil {
			return p, err
		}
		if !r.living[p.Attachment.ID] {
			r.found++
			return p, nil
		}
	}
	return api.Past{}, io.EOF
}

func (r *pasts) full() bool { return r.filter.Limit > 0 && r.found >= r.filter.Limit }

// present shows an attachment that is in the ledger, and how far its release has come.
func (v *Views) present(e *attachment.Entry) api.Past {
	at := v.show(e)
	p, leaving := v.Engine.Past(hold.ID(at.ID))
	if !leaving {
		return api.Past{Attachment: at}
	}
	return pastOf(at, p)
}

// End returns how the reading ended.
func (r *pasts) End() (end api.PastEnd) {
	if r.gone != nil {
		end.Damaged = r.gone.Damaged()
	}
	end.Lost, _ = r.views.history.Trouble()
	return end
}

// Close closes what the reader has open.
func (r *pasts) Close() error {
	if r.gone != nil {
		r.gone.Close()
	}
	return nil
}
