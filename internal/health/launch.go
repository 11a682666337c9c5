package health

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/cni/netconf"
	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/hold"
)

const (
	// check is how often the agent asks its own responder, if the interval is longer.
	check = 10 * time.Second
	// again is how long the agent waits after a failure.
	again = time.Second
	// patient is how many times in a row the responder may fail to answer before the agent launches another one.
	patient = 3
	// holding is how long a launch may take.
	holding = 20 * time.Second
)

// key is the key that the stamp on the responder's link has. No runtime can name such a network.
var key = attachment.Key{Network: "_health", ContainerID: "responder", Ifname: "eth0"}

// keepResponder keeps a responder that answers, until ctx ends.
func (h *Health) keepResponder(ctx context.Context) {
	var p *place
	defer func() {
		h.stand(nil, nil)
		_ = p.close() // the process is about to end, or the namespace has no way any more
	}()
	lost := func(err error) {
		h.stand(nil, err)
		_ = p.close() // what is left of it shows when another one is launched
		p = nil
	}
	for failed, pause := 0, again; ctx.Err() == nil; {
		if p != nil && !h.stays(p) {
			lost(nil)
		}
		if p == nil {
			var err error
			if p, err = h.launch(ctx); err != nil {
				if ctx.Err() == nil {
					h.stand(nil, err)
				}
				daemon.Sleep(ctx, pause, h.wake)
				pause = min(longer(pause), check) // most often there is no pool yet
				continue
			}
			failed = 0
		}
		err := h.answers(ctx, p)
		if ctx.Err() != nil {
			return
		}
		h.stand(p, err)
		if err == nil {
			failed, pause = 0, again
			daemon.Sleep(ctx, min(check, h.Interval), h.wake)
			continue
		}
		daemon.Sleep(ctx, pause, nil)
		if failed++; failed == patient {
			h.Log.Warn("this node's responder does not answer: the agent launches another one", "err", err)
			lost(err)
			pause = longer(pause) // another one may not help
		}
	}
}

// longer returns the pause behind the next failure.
func longer(pause time.Duration) time.Duration { return min(2*pause, time.Minute) }

// stays reports whether a responder is the one that the ledger has, and its addresses are of the pool.
func (h *Health) stays(p *place) bool {
	id, held := h.Ledger.Holder(responderName)
	o, _ := h.Ledger.Owner(id)
	pool, err := h.Pool()
	return held && id == p.owner && o.Wanted() && err == nil && fits(p.addresses, h.CIDRs(pool))
}

// launch attaches a network namespace of its own, and has a responder answer there. First it gives back a former
// attachment, which this or another run of the agent has made; the addresses stay.
func (h *Health) launch(ctx context.Context) (p *place, err error) {
	ctx, cancel := context.WithTimeout(ctx, holding)
	defer cancel()
	if id, held := h.Ledger.Holder(responderName); held {
		if err := h.give(ctx, id); err != nil {
			return nil, fmt.Errorf("giving back the link of the former responder: %w", err)
		}
	}
	id, claim, err := h.address(ctx)
	if err != nil {
		return nil, err
	}
	pool, err := h.Pool()
	if err != nil {
		return nil, err
	}
	if err := h.Equipped(ctx, pool); err != nil {
		return nil, err
	}
	p, err = open(h.Node, h.Port, claim)
	if err != nil {
		return nil, err
	}
	r := attachment.Record{Key: key, Netns: p.ref(), Pool: pool, Mode: netconf.ModeRouted, Created: h.Wall(), Started: h.Boottime(), Epoch: h.Epoch}
	m := h.Mode(claim)
	o, _, err := m.Plan(ctx, hold.NewID(), r, &netconf.Conf{})
	if err != nil {
		return nil, errors.Join(err, p.close())
	}
	o.Meta, o.Needs, o.Names = meta, []hold.ID{id}, []hold.Name{responderName}
	if err := h.Engine.Take(ctx, o); err != nil {
		return nil, errors.Join(fmt.Errorf("attaching the responder: %w", err), p.close())
	}
	m.Taken(o)
	p.owner = o.ID
	h.Log.Info("the responder is attached", "addresses", claim.Addrs(), "port", h.Port, "id", o.ID)
	return p, nil
}

// answers asks the responder, from the node, at each of its addresses. It is to answer at one at least, and at those
// at which it has answered before: a node that has no address of a family itself gets no answer there.
func (h *Health) answers(ctx context.Context, p *place) error {
	var failed []error
	for _, a := range p.addresses.Addrs() {
		err := h.hello(ctx, nil, a, h.Node)
		if err != nil {
			failed = append(failed, fmt.Errorf("asking the responder at %s: %w", a, err))
		}
		p.answered[a] = p.answered[a] || err == nil
		if err != nil && p.answered[a] {
			return failed[len(failed)-1]
		}
	}
	if len(failed) == len(p.addresses.Addrs()) {
		return errors.Join(failed...)
	}
	return nil
}

// retry calls do until it succeeds or ctx ends, after pauses that grow up to a minute. It logs an error unless that is the one
// before.
func (h *Health) retry(ctx context.Context, failure string, do func() error) {
	was := ""
	for wait := again; ctx.Err() == nil; wait = longer(wait) {
		err := do()
		if err == nil || ctx.Err() != nil {
			return
		}
		if err.Error() != was {
			h.Log.Warn(failure, "err", err)
		}
		was = err.Error()
		daemon.Sleep(ctx, wait, nil)
	}
}
