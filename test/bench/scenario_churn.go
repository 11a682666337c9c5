package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
)

const (
	churnAtOnce = 4
	churnRate   = 80          // pairs a second
	churnRest   = time.Minute // after it the agent must be small again
)

// churnPace says in the report how fast the pairs come, and why.
const churnPace = "berthd's memory is that of a churn of at most %d pairs a second, of which %d begin together: the one that set the targets made 67 a second, for seven minutes. " +
	"The pace decides what the agent has to remember. An address rests for a minute, and for five minutes the ledger refuses an ADD that is older than a DEL of its pod. " +
	"A faster churn of as many pairs, as this one is by a fifth, makes more of both; it makes the benchmark a minute shorter"

// turn is a pair of an ADD and a DEL that is to begin.
type turn struct {
	pod *pod
	at  time.Duration // since the churn began
}

// turnsOf returns the pairs of a churn, rate pairs a second, in groups that begin together.
func turnsOf(ps []*pod, pairs, rate int) []turn {
	turns := make([]turn, pairs)
	for i := range turns {
		group := i / churnAtOnce
		turns[i] = turn{ps[i%len(ps)], time.Duration(group*churnAtOnce) * time.Second / time.Duration(rate)}
	}
	return turns
}

// churn measures the memory of an agent while it attaches and detaches tens of thousands of pods at
// a steady pace, and again a minute later, and how many records the agent's ledger then has.
func churn(ctx context.Context, b *bench) error {
	pairs, rate := b.pick(28000, 2000), b.pick(churnRate, 5*churnRate)
	a, err := startAgent(ctx, b.opts.bin, filepath.Join(b.dir, "churn"), []string{"v4=10.96.0.0/16"})
	if err != nil {
		return err
	}
	defer a.Stop()
	ps, err := b.pods.first(64 * churnAtOnce) // so many that a pod's last link is gone when its next one comes
	if err != nil {
		return err
	}
	idle, err := a.Resident()
	if err != nil {
		return err
	}
	most := idle
	watched := make(chan error, 1)
	watching, cancel := context.WithCancel(ctx)
	go func() {
		for watching.Err() == nil {
			now, err := a.Resident()
			if err != nil {
				watched <- err
				return
			}
			most = max(most, now)
			time.Sleep(50 * time.Millisecond)
		}
		watched <- nil
	}()
	begun := time.Now()
	_, wall, err := together(churnAtOnce, turnsOf(ps, pairs, rate), func(t turn) (time.Duration, error) {
		time.Sleep(time.Until(begun.Add(t.at)))
		return a.pair(ctx, t.pod)
	})
	cancel()
	if bad := <-watched; err == nil {
		err = bad
	}
	if err != nil {
		return err
	}
	if err := a.idle(ctx, apiNetwork); err != nil {
		return err
	}
	after, err := a.Resident()
	if err != nil {
		return err
	}
	time.Sleep(churnRest)
	rested, err := a.Resident()
	if err != nil {
		return err
	}
	l, err := a.API.Ledger(ctx)
	if err != nil {
		return err
	}
	t := b.report.section(fmt.Sprintf("berthd after %d ADD and DEL pairs, at most %d a second, in %.0f s", pairs, rate, wall.Seconds()),
		"resident MB before", "most", "at the end", "a minute later", "rests then", "tombstones then")
	t.row(mb(idle), mb(most), mb(after), mb(rested), fmt.Sprint(len(l.Resting)), fmt.Sprint(len(l.Tombstones)))
	t.note(churnPace, rate, churnAtOnce)
	b.report.atMost("berthd resident while pods come and go", float64(most)/1e6, 40, "MB")
	b.report.atMost("berthd resident a minute later", float64(rested)/1e6, 30, "MB")
	return settle(ps)
}

// pair attaches a pod as a container that was never there before, and detaches it.
func (a *agent) pair(ctx context.Context, p *pod) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	begun := time.Now()
	container := fmt.Sprintf("churn-%064d", containers.Add(1))
	_, err := a.API.Add(ctx, api.AddRequest{
		ContainerID: container, Ifname: ifname, Netns: api.Netns(p.ref),
		Config: json.RawMessage(fmt.Sprintf(`{"cniVersion": "1.1.0", "name": %q, "type": "berth-cni", "root": %q}`, apiNetwork, a.Root)),
	})
	if err != nil {
		return 0, fmt.Errorf("adding %s: %w", p.ref.Path, err)
	}
	for {
		_, err := a.API.Delete(ctx, api.Filter{Network: apiNetwork, Container: container, Ifname: ifname}, false)
		var refused *api.Error
		if errors.As(err, &refused) && refused.Code == cni.CodeTryAgain {
			continue // as a runtime does
		}
		if err != nil {
			return 0, fmt.Errorf("deleting %s: %w", p.ref.Path, err)
		}
		return time.Since(begun), nil
	}
}
