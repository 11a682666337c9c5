package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/test/crash/killer"
)

// Figures of the loop.
const (
	loopPods    = 30
	loopWorkers = 6
	// loopPools lets addresses come back while the loop runs.
	loopPools    = "pools:\n  - name: default\n    cidrs: [10.88.0.0/21, \"fd00:88::/64\"]\ncooldown: 5s\n"
	loopCooldown = 5 * time.Second
	// lookEvery is the number of kills between two audits.
	lookEvery = 250
	// alive is how long the agent lives at most before it is killed.
	alive = 25 * time.Millisecond
)

// churn is the loop: pods come and go by the plugin, several at once, while
// plugins and agent are killed at random moments.
type churn struct {
	w       *world
	slots   []*slot
	kills   int64
	agents  atomic.Int64 // kills of agents
	plugins atomic.Int64 // kills of plugins

	mu   sync.Mutex
	errs []error
}

func (l *churn) killed() int64 { return l.agents.Load() + l.plugins.Load() }

// over reports whether the loop has killed enough, or found something.
func (l *churn) over() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.errs) > 0 || l.killed() >= l.kills
}

func (l *churn) found(err error) {
	if err == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.errs = append(l.errs, err)
}

// loop kills programs at random moments, as often as the options say.
func loop(o options, r *report) (err error) {
	begun := time.Now()
	w, err := newWorld(o.bin, loopPools)
	defer func() { err = errors.Join(err, w.close()) }()
	if err != nil {
		return err
	}
	w.cooldown = loopCooldown
	if err := w.restart(); err != nil {
		return err
	}
	if err := w.settle(); err != nil {
		return err
	}
	l := &churn{w: w, kills: int64(o.kills)}
	if _, err := w.pod(loopPods - 1); err != nil {
		return err
	}
	for _, p := range w.pods {
		l.slots = append(l.slots, &slot{pod: p})
	}
	if err := w.agent.Kill(); err != nil {
		return err
	}
	for !l.over() {
		l.round(o.seed)
		w.deaths.Store(l.killed())
		l.found(l.look())
		r.say("kill loop: %d kills of agents, %d of plugins", l.agents.Load(), l.plugins.Load())
	}
	if len(l.errs) == 0 {
		l.found(l.end())
	}
	r.kills = int(l.killed())
	r.print("kill loop            seed %d: %d kills of berthd, %d of berth-cni, %.1f s",
		o.seed, l.agents.Load(), l.plugins.Load(), time.Since(begun).Seconds())
	if err := errors.Join(l.errs...); err != nil {
		r.residue(fmt.Sprintf("the kill loop with seed %d", o.seed), fmt.Errorf("%w\nberthd's last words:\n%s", err, w.lastWords()))
	}
	return nil
}

// round is a part of the loop between two audits. No process is left when it returns.
func (l *churn) round(seed uint64) {
	until := min(l.kills, l.killed()+lookEvery)
	done := func() bool { return l.over() || l.killed() >= until }
	free := make(chan *slot, len(l.slots))
	for _, s := range l.slots {
		free <- s
	}
	var workers, supervisor sync.WaitGroup
	stop := make(chan struct{})
	supervisor.Go(func() { l.supervise(rand.New(rand.NewPCG(seed, uint64(until))), stop) })
	for i := range loopWorkers {
		random := rand.New(rand.NewPCG(seed^uint64(i+1), uint64(until)))
		workers.Go(func() {
			for !done() {
				if often(random, 3) {
					l.found(l.collect(random))
					continue
				}
				s := <-free
				l.found(l.step(s, random))
				free <- s
			}
		})
	}
	workers.Wait()
	close(stop)
	supervisor.Wait()
}

// supervise starts the agent and kills it, again and again.
func (l *churn) supervise(random *rand.Rand, stop <-chan struct{}) {
	for {
		p, err := killer.StartFree(l.w.berthd())
		if err != nil {
			l.found(err)
			return
		}
		l.w.agent = p
		if often(random, 75) { // otherwise the kill may come before the agent serves
			if err := l.w.serving(); err != nil {
				l.found(fmt.Errorf("starting the agent after a kill: %w", err))
			}
		}
		timer := time.NewTimer(time.Duration(random.Int64N(int64(alive))))
		signal := unix.SIGKILL
		if often(random, 5) {
			signal = unix.SIGTERM
		}
		ended := false
		select {
		case <-stop:
			ended = true
		case <-timer.C:
		}
		timer.Stop()
		if p.Gone() {
			l.found(errors.New("the agent has ended by itself"))
		}
		status, err := p.End(signal)
		l.found(err)
		if err == nil && status.Signaled() && status.Signal() == unix.SIGKILL {
			l.agents.Add(1)
		}
		if ended {
			return
		}
	}
}

// end detaches all pods, and then gives back what the agent itself holds.
func (l *churn) end() error {
	w := l.w
	if err := w.restart(); err != nil {
		return err
	}
	if err := detachAll(w, nil); err != nil {
		return err
	}
	if err := w.clean(); err != nil {
		return err
	}
	return removed(w)
}
