package notice

import (
	"context"
	"time"

	"github.com/berth-net/berth/internal/daemon"
)

// Trouble is something that is wrong until it is mended.
type Trouble struct {
	Notice
	Mended Notice // what people are told then; about the same object
}

const (
	// review is how often Watch looks (Notices.Every).
	review = 10 * time.Second
	// remind is how often people are told again of a trouble that stays: sooner than the API server forgets Events.
	remind = 30 * time.Minute
)

// known is a trouble, and when people were told of it; zero: only one look has seen it, or there was no room to tell of it.
type known struct {
	Trouble
	said time.Time
}

// Watch tells of the troubles that look returns, when they come, change (Notice.Of) and go, until ctx ends. A trouble that only one
// look has seen is none: much of what happens when a node starts is over at once.
func (n *Notices) Watch(ctx context.Context, look func() []Trouble) {
	told := map[key]known{}
	for ctx.Err() == nil {
		n.compare(told, look())
		daemon.Sleep(ctx, n.Every, nil)
	}
}

// compare says what has changed since people were told, and keeps that in told. What has no room is said when the next look is
// compared.
func (n *Notices) compare(told map[key]known, troubles []Trouble) {
	is, now := map[key]bool{}, n.now()
	for _, t := range troubles {
		k := key{t.About, t.Reason}
		is[k] = true
		was, seen := told[k]
		if seen && (was.said.IsZero() || was.Of != t.Of || now.Sub(was.said) >= remind) {
			if !n.offer(t.Notice) {
				t.Of = was.Of // so that a change of what people know already is a change the next time, too
			} else {
				was.said = now
			}
		}
		told[k] = known{t, was.said}
	}
	for k, was := range told {
		if is[k] {
			continue
		}
		if !was.said.IsZero() && !n.offer(was.Mended) {
			continue
		}
		delete(told, k)
	}
}
