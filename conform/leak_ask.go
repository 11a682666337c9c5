package conform

// askChecks are about calls that only ask.
var askChecks = []Check{
	{
		Name: "leak/questions", Level: Own, Spec: "the suite's own: CNI 1.1.0, section 2, CHECK, STATUS and VERSION only ask, and runtimes do so again and again",
		Says:  "CHECK, STATUS and VERSION leave nothing on the node, and change nothing there",
		Needs: []string{"leak/add-del", "check/well", "version/answer"}, run: leakQuestions,
	},
}

// leakQuestions asks everything once before it looks: what plugins set up once and for all, such as the file of a lock, is no leak.
func leakQuestions(t *T) {
	empty := t.Seen()
	a := t.Attached()
	verbs := []string{"VERSION"}
	if !t.list().DisableCheck {
		verbs = append(verbs, "CHECK")
	}
	if t.Version == "1.1.0" {
		verbs = append(verbs, "STATUS")
	}
	for _, verb := range verbs {
		t.ask(verb, a)
	}
	t.quiet(empty)
	before := t.standing(a)
	for _, verb := range verbs {
		t.ask(verb, a)
		t.WantNothingNew(before.node, verb)
		t.wantSpared(before, verb, "an attachment")
		before = t.standing(a)
	}
	t.MustDel(a)
}

// ask executes a verb that only asks, of every plugin. Others judge the answers.
func (t *T) ask(verb string, a *Attachment) {
	switch verb {
	case "CHECK":
		t.Check(a)
	case "STATUS":
		t.Status()
	case "VERSION":
		for i := range t.list().Plugins {
			t.Exec(Call{Type: t.list().Plugins[i].Type, Verb: verb, Stdin: t.list().Conf(i, map[string]any{"cniVersion": t.Version})})
		}
	}
}
