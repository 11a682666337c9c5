package conform

// killChecks kill plugins in the middle of a call.
var killChecks = []Check{
	{
		Name: "leak/kill-add", Level: Should, Spec: "CNI 1.1.0, section 2, DEL: even if state is missing, and section 3, Lifecycle & Ordering",
		Says:  "the DEL after an ADD that was killed half-way cleans up what that ADD left",
		Needs: []string{"del/never-added"}, run: leakKillAdd,
	},
	{
		Name: "leak/kill-del", Level: Should, Spec: "CNI 1.1.0, section 2, DEL: even if state is missing",
		Says:  "a repeated DEL cleans up what a DEL that was killed half-way left",
		Needs: []string{"leak/add-del", "del/idempotent"}, run: leakKillDel,
	},
}

func leakKillAdd(t *T) {
	t.killEach("ADD", func(a *Attachment, by executor) (Answer, error) {
		got, err := t.addBy(a, by)
		a.Result = nil // a runtime keeps only the result of an ADD that worked
		return got, err
	})
}

func leakKillDel(t *T) {
	t.killEach("DEL", func(a *Attachment, by executor) (Answer, error) {
		if got := t.Add(a); !got.OK() {
			t.Fatalf("ADD of another pod fails: %s", got)
		}
		return t.delBy(a, by)
	})
}

// killEach kills a plugin at each point of a verb, for each point with another pod. run executes the
// pod's calls up to the killed call. After run, killEach executes the DEL that has to clean up.
func (t *T) killEach(verb string, run func(*Attachment, executor) (Answer, error)) {
	points := t.points(verb)
	trail, killed := t.trailFrom(t.Warm()), 0
	for _, p := range points {
		a := t.NewAttachment()
		got, err := run(a, func(plugin int, c Call) (Answer, error) {
			if plugin == p.plugin {
				return t.killed(c, p), nil
			}
			return t.execute(plugin, c)
		})
		t.must(err)
		if !got.OK() {
			killed++
		}
		if got := t.Del(a); !got.OK() {
			t.failedStep("after %s the DEL that cleans up fails: %s", p.name, got)
		}
		t.must(a.Pod.Remove())
		trail.look(p.name)
	}
	t.noteKills(killed, points)
}

// failedStep is Failf for one of many steps. After mostSteps failures failedStep ends the check.
func (t *T) failedStep(format string, args ...any) {
	t.Failf(format, args...)
	if len(t.seen) >= mostSteps {
		t.Fatalf("after %d bad steps the suite left out the other steps", mostSteps)
	}
}

func (t *T) noteKills(killed int, points []point) {
	how := "strace was used"
	if len(points) > 0 && points[0].change == 0 {
		how = "at time offsets, since strace is not installed"
	}
	t.Notef("killed at %d of %d points (%s)", killed, len(points), how)
}
