package conform

import "encoding/json"

// killChecks kill plugins in the middle.
var killChecks = []Check{
	{
		Name: "leak/kill-add", Spec: "CNI 1.1.0, section 2, DEL: even if state is missing (it should), and section 3, Lifecycle & Ordering",
		Says:  "the DEL after an ADD that was killed half-way cleans up what that ADD left",
		Needs: []string{"del/never-added"}, run: leakKillAdd,
	},
	{
		Name: "leak/kill-del", Spec: "CNI 1.1.0, section 2, DEL: even if state is missing (it should)",
		Says:  "a repeated DEL cleans up what a DEL that was killed half-way left",
		Needs: []string{"leak/add-del", "del/idempotent"}, run: leakKillDel,
	},
}

func leakKillAdd(t *T) {
	points := t.points("ADD")
	trail, killed := t.trailFrom(t.Warm()), 0
	for _, p := range points {
		a := t.NewAttachment()
		if got := t.addKilled(a, p); !got.OK() {
			killed++
		}
		a.Result = nil // a runtime keeps only the result of an ADD that worked
		if got := t.Del(a); !got.OK() {
			t.failedStep("after %s DEL fails: %s", p.name, got)
		}
		t.must(a.Pod.Remove())
		trail.look(p.name)
	}
	t.noteKills(killed, points)
}

// addKilled is Add, but kills one plugin at p.
func (t *T) addKilled(a *Attachment, p point) (last Answer) {
	var prev json.RawMessage
	for i := range t.suite.list.Plugins {
		c := t.Call("ADD", i, a, prev)
		if i == p.plugin {
			last = t.killed(c, p)
		} else {
			last = t.Exec(c)
		}
		if !last.OK() {
			return last
		}
		prev = last.Stdout
	}
	return last
}

func leakKillDel(t *T) {
	points := t.points("DEL")
	trail, killed := t.trailFrom(t.Warm()), 0
	for _, p := range points {
		a := t.NewAttachment()
		if got := t.Add(a); !got.OK() {
			t.Fatalf("ADD of another pod fails: %s", got)
		}
		if got := t.delKilled(a, p); !got.OK() {
			killed++
		}
		if got := t.Del(a); !got.OK() {
			t.failedStep("after %s another DEL fails: %s", p.name, got)
		}
		t.must(a.Pod.Remove())
		trail.look(p.name)
	}
	t.noteKills(killed, points)
}

// delKilled is Del, but kills one plugin at p.
func (t *T) delKilled(a *Attachment, p point) (last Answer) {
	for i := len(t.suite.list.Plugins) - 1; i >= 0; i-- {
		c := t.Call("DEL", i, a, a.Result)
		if i == p.plugin {
			last = t.killed(c, p)
		} else {
			last = t.Exec(c)
		}
		if !last.OK() {
			return last
		}
	}
	return last
}

// failedStep is Failf for one of many steps. After mostSteps failures it ends the check.
func (t *T) failedStep(format string, args ...any) {
	t.Failf(format, args...)
	if len(t.seen) >= mostSteps {
		t.Fatalf("... which is enough; the suite left out the other steps")
	}
}

func (t *T) noteKills(killed int, points []point) {
	how := "strace was used"
	if len(points) > 0 && points[0].change == 0 {
		how = "at time offsets, since strace is not installed"
	}
	t.Notef("killed at %d of %d points (%s)", killed, len(points), how)
}
