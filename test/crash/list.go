package main

import (
	"slices"
	"strings"
	"time"

	"github.com/berth-net/berth/test/crash/killer"
)

// Remedies that several scenarios share.
var (
	thenDel   = remedy{"DEL", detachAll}
	thenAdd   = remedy{"ADD, CHECK and DEL", addAgain}
	thenOther = remedy{"another ADD and a late DEL", successor}
	thenGC    = remedy{"GC", collectAgain}
	thenCheck = remedy{"CHECK and DEL", kept}
	thenStart = remedy{"a start", detachAll}
)

// verbOf returns a function that executes a verb for the first pod, as a runtime does.
func verbOf(verb string) func(*world) error {
	return func(w *world) error { return w.pods[0].verb(verb, nil) }
}

// scenarios lists all scenarios. In each of them, a program is killed at every call of a
// verb.
func scenarios() []scenario {
	agent := []scenario{
		{name: "berthd first start", prepare: bare, verb: started, remedies: []remedy{thenStart}, check: begun},
		{name: "berthd start", prepare: idle, verb: started, remedies: []remedy{thenStart}},
		{name: "berthd ADD", prepare: blank, verb: onAgent(verbOf("ADD")), remedies: []remedy{thenDel, thenAdd}},
		{name: "berthd ADD dual", conf: pools6, prepare: blank, verb: onAgent(verbOf("ADD")), remedies: []remedy{thenDel, thenAdd}},
		{name: "berthd DEL", prepare: attached(1), verb: onAgent(verbOf("DEL")), remedies: []remedy{thenDel, thenOther}},
		{name: "berthd DEL dual", conf: pools6, prepare: attached(1), verb: onAgent(verbOf("DEL")), remedies: []remedy{thenDel}},
		{name: "berthd DEL 20", prepare: attached(20), remedies: []remedy{thenDel}, verb: onAgent(func(w *world) error {
			return w.together(20, func(p *pod) error { return p.verb("DEL", nil) })
		})},
		{name: "berthd GC", prepare: attached(4), remedies: []remedy{thenGC, thenDel}, verb: onAgent(func(w *world) error { return collect(w, nil) })},
		{name: "berthd restore", prepare: halfWay, verb: started, remedies: []remedy{thenCheck}},
		{name: "berthd reboot", prepare: reboot, verb: started, remedies: []remedy{thenDel}},
		{name: "berthd drain", prepare: queued, verb: started, remedies: []remedy{{"nothing, but DEL of another", drained}}},
		{name: "berthd stop", prepare: attached(2), verb: stopped, remedies: []remedy{thenDel}},
	}
	for i := range agent {
		agent[i].agent = true
	}
	return append(append(agent, networks()...),
		scenario{name: "berthd --remove", prepare: idle, verb: removing, remedies: []remedy{{"--remove", removedAgain}}},
		scenario{name: "berthd rebuild", conf: poolsShort, cooldown: 300 * time.Millisecond, prepare: ledgerLost, verb: rebuilding, away: true,
			remedies: []remedy{{"a rebuild, a start and DEL", rebuiltAgain}}, check: begunAgain},
		scenario{name: "berth-cni ADD", prepare: blank, verb: onPlugin("ADD"), remedies: []remedy{thenDel, thenAdd}},
		scenario{name: "berth-cni CHECK", prepare: attached(1), verb: onPlugin("CHECK"), remedies: []remedy{thenDel}},
		scenario{name: "berth-cni DEL", prepare: attached(1), verb: onPlugin("DEL"), remedies: []remedy{thenDel, thenOther}},
		scenario{name: "berth-cni DEL away", prepare: orphaned(1), verb: onPlugin("DEL"), away: true, remedies: []remedy{
			{"a start and DEL", startAndDetach}, {"DEL and a start", detachAndStart}, {"a start", onlyStart},
		}},
		scenario{name: "berth-cni GC", prepare: attached(4), verb: collect, remedies: []remedy{thenGC}},
		scenario{name: "berth-cni STATUS", prepare: running, verb: func(w *world, judge killer.Judge) error {
			c, f, err := w.plugin("STATUS", nil)
			if err == nil {
				_, err = run(c, f, judge)
			}
			return err
		}, remedies: []remedy{thenDel}},
		scenario{name: "kernel ADD", fails: true, agent: true, conf: pools6, prepare: blank, verb: onAgent(verbOf("ADD")), remedies: []remedy{thenDel}},
		scenario{name: "kernel DEL", fails: true, agent: true, conf: pools6, prepare: attached(1), verb: onAgent(verbOf("DEL")), remedies: []remedy{thenDel}},
		scenario{name: "kernel GC", fails: true, agent: true, prepare: attached(4), remedies: []remedy{thenGC}, verb: onAgent(func(w *world) error { return collect(w, nil) })},
	)
}

// chosen returns the scenarios with one of these texts in their names; without texts, all.
func chosen(verbs []string) []scenario {
	return slices.DeleteFunc(scenarios(), func(s scenario) bool {
		named := func(v string) bool { return strings.Contains(s.name, v) }
		return len(verbs) > 0 && !slices.ContainsFunc(verbs, named) || s.fails && !killer.CanFail
	})
}
