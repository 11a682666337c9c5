package conform

import (
	"os"
	"path/filepath"
)

// lifeChecks stop and start a daemon of the plugins, or the node itself.
var lifeChecks = []Check{
	{
		Name: "leak/daemon", Level: Should, Spec: "CNI 1.1.0, section 2, DEL: best effort, even if resources or state are missing",
		Says:  "DEL cleans up what was attached, or being attached, when the daemon stopped, at the latest once the daemon is back",
		Needs: []string{"leak/add-del", "del/idempotent"}, run: leakDaemon,
	},
	{
		Name: "leak/reboot", Level: Should, Spec: "CNI 1.1.0, section 2, DEL: even if the network namespace is gone",
		Says:  "the DEL after a reboot releases what a pod held before it",
		Needs: []string{"del/netns-gone"}, run: leakReboot,
	},
}

// hasHook reports whether there is a hook program of that name.
func (s *suite) hasHook(name string) bool {
	_, err := os.Stat(filepath.Join(s.HookDir, name))
	return s.HookDir != "" && err == nil
}

func (t *T) needDaemon() {
	for _, name := range []string{"stop", "start"} {
		if !t.suite.hasHook(name) {
			t.Unsupportedf("there is no hook %q, so the suite cannot stop and start a daemon of the plugins", name)
		}
	}
}

// leakDaemon attaches pods and executes DEL around a stop of the daemon. Like a runtime, it repeats a
// DEL that failed while the daemon was away.
func leakDaemon(t *T) {
	t.needDaemon()
	before := t.Warm()
	attached := t.Attached()

	t.must(t.Node.Hook(t.ctx, "stop"))
	first := t.Del(attached)
	late := t.NewAttachment()
	added := t.Add(late)
	if !added.OK() {
		late.Result = nil
	}
	second := t.Del(late)
	t.must(t.Node.Hook(t.ctx, "start"))
	t.Notef("with the daemon stopped: %s; %s; %s", first, added, second)

	for _, one := range []struct {
		a     *Attachment
		first Answer
	}{{attached, first}, {late, second}} {
		if one.first.OK() {
			continue
		}
		if got := t.Del(one.a); !got.OK() {
			t.Failf("DEL fails even after the daemon is back: %s", got)
		}
	}
	t.must(attached.Pod.Remove())
	t.must(late.Pod.Remove())
	t.WantNothingNew(before, "ADD, a stop of the daemon, DEL, ADD and DEL of another, and its start")
}

// rebooted is how many pods are attached when the node reboots.
const rebooted = 3

// leakReboot compares the state after one reboot with the state after another. So neither
// things that a reboot ends nor things that every boot makes count as leaks. A daemon may give files in /run, which a reboot empties,
// names of this boot alone, such as that of its network namespace: those that it makes when it starts are no leaks either.
func leakReboot(t *T) {
	pods := rebooted
	if t.suite.second != "yes" && t.suite.second != "" {
		pods = 1
	}
	t.Warm()
	t.must(t.Node.Reboot(t.ctx))
	before := t.Warm()
	var all []*Attachment
	for range pods {
		a := t.Attached()
		all = append(all, a)
	}
	t.must(t.Node.Reboot(t.ctx))
	before = before.And(t.Seen().Beginning("file " + volatile + "/"))
	for _, a := range all {
		if got := t.Del(a); !got.OK() {
			t.Failf("DEL after a reboot fails: %s", got)
		}
	}
	a := t.NewAttachment()
	if got := t.Add(a); !got.OK() {
		t.Failf("ADD after a reboot fails: %s", got)
	}
	t.Del(a)
	t.must(a.Pod.Remove())
	t.WantNothingNew(before, "ADD, a reboot, and DEL")
}
