package conform

// statusChecks are about STATUS.
var statusChecks = []Check{
	{
		Name: "status/available", Level: Must, Spec: "CNI 1.1.0, section 2, STATUS", Since: "1.1.0",
		Says:  "STATUS succeeds when the plugin is ready for ADD",
		Needs: []string{"basic/attach"}, run: statusAvailable,
	},
	{
		Name: "status/delegated", Level: Must, Spec: "CNI 1.1.0, section 2, STATUS: Plugin considerations (it must ask, and should fail)", Since: "1.1.0",
		Says:  "a plugin's STATUS asks the plugins that it delegates to, and fails if they fail",
		Needs: []string{"status/available"}, run: statusDelegated,
	},
	{
		Name: "status/daemon", Level: Should, Spec: "CNI 1.1.0, section 2, STATUS", Since: "1.1.0",
		Says:  "STATUS fails when something that ADD needs, such as a daemon, does not run",
		Needs: []string{"status/available"}, run: statusDaemon,
	},
}

// Status executes STATUS of each plugin until a plugin fails, and returns the last
// answer.
func (t *T) Status() Answer {
	var last Answer
	for i := range t.list().Plugins {
		if last = t.Exec(t.networkCall("STATUS", i, nil)); !last.OK() {
			return last
		}
	}
	return last
}

// networkCall returns a call that is about no attachment: its environment has only
// CNI_COMMAND and CNI_PATH.
func (t *T) networkCall(verb string, plugin int, keys map[string]any) Call {
	all := map[string]any{"cniVersion": t.Version}
	for k, v := range keys {
		all[k] = v
	}
	return Call{Type: t.list().Plugins[plugin].Type, Verb: verb, Stdin: t.list().Conf(plugin, all)}
}

func statusAvailable(t *T) {
	if got := t.Status(); !got.OK() {
		t.Failf("ADD works, but STATUS says: %s", got)
	}
	a := t.Attached()
	if got := t.Status(); !got.OK() {
		t.Failf("STATUS with a pod attached says: %s", got)
	}
	t.MustDel(a)
}

func statusDelegated(t *T) {
	s := t.standInFor("STATUS")
	c := t.networkCall("STATUS", s.plugin, nil)
	c.Path = s.path
	got := t.Exec(c)
	switch {
	case !s.called():
		t.Failf("STATUS does not ask %s, which ADD needs: %s", s.name, got)
	case got.OK():
		t.as(Should, func() {
			t.Failf("STATUS of %s fails with code 50, but the plugin that delegates to it succeeds: %s", s.name, got)
		})
	}
}

// statusExhausted judges only lists with room for fewer than crowd pods: it does not use up a larger
// range.
func statusExhausted(t *T) {
	t.needSecondPod()
	var all []*Attachment
	var full Answer
	for full.Call.Verb == "" && t.suite.room == 0 && len(all) < crowd {
		some := t.newAttachments(atOnce)
		all = append(all, some...)
		for _, got := range t.beside(some, t.tryAdd) {
			if !got.OK() {
				full = got
			}
		}
	}
	if full.Call.Verb == "" {
		t.suite.room = crowd
	}
	status := t.Status()
	t.beside(all, t.tryDel)
	for _, a := range all {
		t.must(a.Pod.Remove())
	}
	if t.suite.room >= crowd {
		t.Unsupportedf("the list attaches %d pods or more; this check needs a smaller address range, which it can use up", crowd)
	}
	if status.OK() {
		t.Failf("ADD fails (%s), but STATUS says: %s", full, status)
	}
	if got := t.Status(); !got.OK() {
		t.Failf("all pods are gone, but STATUS says: %s", got)
	}
}

// statusDaemon does not judge plugins whose ADD works without their daemon.
func statusDaemon(t *T) {
	t.needDaemon()
	t.must(t.Node.Hook(t.ctx, "stop"))
	a := t.NewAttachment()
	added := t.Add(a)
	status := t.Status()
	t.must(t.Node.Hook(t.ctx, "start"))
	t.Del(a)
	if added.OK() {
		t.Unsupportedf("ADD also works without the daemon")
	}
	if status.OK() {
		t.Failf("with the daemon stopped ADD fails (%s), but STATUS says: %s", added, status)
		return
	}
	if e, err := status.Failure(); err != nil {
		t.Failf("with the daemon stopped, STATUS fails, but its error does not have the form of a CNI error: %v: %s", err, status)
	} else if e.Code != 50 && e.Code != 51 {
		t.Notef("the code is %d, but CNI has codes 50 and 51 for this", e.Code)
	}
	if got := t.Status(); !got.OK() {
		t.Failf("the daemon is back, but STATUS says: %s", got)
	}
}
