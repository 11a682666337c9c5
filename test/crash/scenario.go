package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/berth-net/berth/test/crash/killer"
)

// scenario is a verb of a program, with what is done before and after it.
type scenario struct {
	name string // "berthd ADD": the program that is killed, and the verb
	conf string // berthd.yaml; "": pools4
	// cooldown is the cooldown in conf, if that is not an hour.
	cooldown time.Duration

	// prepare makes what the verb needs. When it is called, the agent runs.
	prepare func(w *world) error
	// verb runs the verb with its program under the judge. It returns when the program has
	// been killed, or when all work that the verb caused is done.
	verb func(w *world, judge killer.Judge) error
	// remedies are what a runtime may do after the verb, when the agent runs again. Each
	// remedy detaches everything. The program is killed at every call once for each remedy.
	remedies []remedy
	// check looks for residue; nil: world.nothingLeft.
	check func(w *world) error
	// away says that no agent runs after the verb, and that the remedies start one.
	away bool
	// agent says that the running agent is killed, and not a program that ends by itself.
	agent bool
	// networks says that pods have two networks, one of them by berth-runner.
	networks bool
	// fails says that requests to the kernel fail instead of killing the program.
	fails bool
}

// remedy is what a runtime does after a verb. do gets the verb's error, or nil.
type remedy struct {
	name string
	do   func(w *world, verb error) error
}

// tally says what a scenario covered.
type tally struct {
	calls   map[string]bool // calls that the verb makes, in the form of plan.at
	covered map[point]bool
	faults  int      // the number of kills or failures
	missed  []string // points that could not be hit although the calls were seen
}

// point is a call and a verdict about it.
type point struct {
	call    string
	verdict killer.Verdict
}

// mostCalls bounds the loop over a verb's calls, in case the calls never end.
const mostCalls = 2000

// run kills the verb's program at each of its calls.
func (s *scenario) run(bin string, say func(format string, args ...any)) (t *tally, err error) {
	t = &tally{calls: map[string]bool{}, covered: map[point]bool{}}
	conf := cmp.Or(s.conf, pools4)
	w, err := newWorld(bin, conf)
	defer func() { err = errors.Join(err, w.close()) }()
	if s.cooldown > 0 {
		w.cooldown = s.cooldown
	}
	if err == nil && s.networks {
		err = w.with(filepath.Join(bin, "peers"), !s.agent)
	}
	if err == nil {
		err = w.restart()
	}
	if err == nil {
		err = w.settle()
	}
	if err != nil {
		return t, err
	}
	verdicts := kills
	if s.fails {
		verdicts = failures
	}
	for _, v := range verdicts {
		for _, r := range s.remedies {
			for n := 1; n < mostCalls; n++ {
				p := &plan{verdict: v, n: n}
				if err := s.point(w, t, p, r, say); err != nil {
					return t, err
				}
				if p.hit == "" {
					break
				}
			}
		}
	}
	if err := s.again(w, t, verdicts, say); err != nil {
		return t, err
	}
	return t, s.end(w)
}

// again tries to hit the points that were missed: calls that run at the same time come in
// another order each time.
func (s *scenario) again(w *world, t *tally, verdicts []killer.Verdict, say func(string, ...any)) error {
	const tries, most = 3, 100
	for _, v := range verdicts {
		for _, call := range slices.Sorted(maps.Keys(t.calls)) {
			if strings.HasPrefix(call, "recv") {
				continue // from which socket the nth answer comes differs from run to run
			}
			for range tries {
				if t.covered[point{call, v}] {
					break
				}
				if err := s.point(w, t, &plan{verdict: v, at: call}, s.remedies[0], say); err != nil {
					return err
				}
			}
			if !t.covered[point{call, v}] {
				t.missed = append(t.missed, fmt.Sprintf("%s %s", v, call))
			}
			if len(t.missed) > most {
				return fmt.Errorf("%s: more than %d points came up by chance, and not again: is something in their names by chance? %q", s.name, most, t.missed)
			}
		}
	}
	return nil
}

// point runs the verb with one fault, then the remedy, and looks for residue.
func (s *scenario) point(w *world, t *tally, p *plan, r remedy, say func(string, ...any)) error {
	where := func(err error) error {
		return fmt.Errorf("%s, %s, then %s: %w\nberthd's last words:\n%s", s.name, p, r.name, err, w.lastWords())
	}
	if err := s.prepare(w); err != nil {
		return where(fmt.Errorf("preparing: %w", err))
	}
	if !w.agent.Gone() {
		all, err := w.list()
		if err != nil {
			return where(err)
		}
		w.noteThere(all)
	}
	verbErr := s.verb(w, p.judge)
	hit, calls := p.went()
	for _, c := range calls {
		t.calls[c] = true
	}
	if hit == "" && verbErr != nil {
		return where(fmt.Errorf("it fails though nothing happened to it: %w", verbErr))
	}
	if hit != "" && s.agent && !s.fails {
		if _, err := w.agent.Wait(patience); err != nil {
			return where(err)
		}
	}
	if hit != "" {
		t.faults++
		t.covered[point{hit, p.verdict}] = true
		say("%s: %s", s.name, p)
	}
	if hit != "" && !s.fails {
		w.deaths.Add(1)
	}
	if w.agent.Gone() && !s.away {
		if err := w.restart(); err != nil {
			return where(err)
		}
	}
	w.agent.Watch(nil)
	var err error
	if !s.away {
		err = w.notePresent()
	}
	if err == nil {
		err = r.do(w, verbErr)
	}
	if err == nil && s.check != nil {
		err = s.check(w)
	} else if err == nil {
		err = w.nothingLeft()
	}
	if err != nil {
		return where(err)
	}
	return nil
}

// end stops the agent and gives back, by `berthd --remove`, what the agent itself holds.
func (s *scenario) end(w *world) error {
	if err := w.stop(); err != nil {
		return err
	}
	if status, err := w.remove(nil); err != nil || status != 0 {
		return fmt.Errorf("berthd --remove ends with status %#x (%v)\n%s", status, err, w.lastWords())
	}
	return w.removed()
}
