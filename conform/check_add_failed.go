package conform

import "encoding/json"

// failure is an ADD that cannot succeed.
type failure struct {
	what string
	add  func(*T) (*Attachment, Answer)
	late bool // plugins before the one that fails have succeeded, and cannot undo their part
}

// failures returns the failures that are possible with the list: an ADD can fail before a plugin
// has done anything, in the middle, or as late as possible.
func (t *T) failures() []failure {
	all := []failure{{what: nowhere, add: (*T).addNowhere}}
	if t.usual().linked {
		all = append(all, failure{what: "ADD of an interface that the container has already", add: (*T).addTwice})
	}
	if _, ok := t.ipam(); ok {
		all = append(all, failure{what: "ADD whose IPAM plugin fails", add: (*T).addWithoutIPAM})
	}
	if len(t.list().Plugins) > 1 {
		all = append(all, failure{what: "ADD whose last plugin fails", add: (*T).addAllButOne, late: true})
	}
	return all
}

// addTwice executes ADD with an interface name that the pod has already.
func (t *T) addTwice() (*Attachment, Answer) {
	a := t.NewAttachment()
	t.squat(a)
	return a, t.Add(a)
}

// ipam returns the "ipam" of the first plugin, if it names a plugin to delegate
// to.
func (t *T) ipam() (map[string]any, bool) {
	var ipam map[string]any
	if err := json.Unmarshal(t.list().Plugins[0].Keys["ipam"], &ipam); err != nil {
		return nil, false
	}
	name, ok := ipam["type"].(string)
	return ipam, ok && name != ""
}

// addWithoutIPAM executes ADD with an IPAM plugin that does not exist.
func (t *T) addWithoutIPAM() (*Attachment, Answer) {
	a := t.NewAttachment()
	ipam, _ := t.ipam()
	ipam["type"] = "conform-no-such-plugin"
	c := t.Call("ADD", 0, a, nil)
	c.Stdin = withKey(c.Stdin, "ipam", ipam)
	return a, t.Exec(c)
}

// addAllButOne executes ADD of all plugins; the last plugin cannot succeed. Like every
// ADD that fails, it leaves no result to the runtime.
func (t *T) addAllButOne() (*Attachment, Answer) {
	a := t.NewAttachment()
	last := len(t.list().Plugins) - 1
	for i := range last {
		t.mustAddOne(i, a)
	}
	c := t.Call("ADD", last, a, a.Result)
	badVersion.do(&c)
	a.Result = nil
	return a, t.Exec(c)
}

// addFailedLeavesNothing does not judge a DEL that fails: the check del/after-failed-add judges that.
func addFailedLeavesNothing(t *T) {
	t.Warm()
	judged := 0
	for _, f := range t.failures() {
		t.warmFailure(f)
		before := t.Seen()
		a, got := f.add(t)
		if got.OK() {
			t.Notef("%s succeeded: %s", f.what, got)
		}
		if del := t.Del(a); !del.OK() {
			t.Notef("DEL after %s fails: %s", f.what, del)
			continue
		}
		judged++
		t.WantNothingNew(before, f.what+" and DEL")
	}
	if judged == 0 {
		t.Unsupportedf("every DEL after a failed ADD fails, so that the suite cannot judge what is left")
	}
}

// addFailedUndone asks for more than the specification: by section 4 a plugin calls the DEL of the delegate that has failed, which the check
// add/delegated-failed judges, and its own part waits for the DEL that the runtime owes.
func addFailedUndone(t *T) {
	t.Warm()
	for _, f := range t.failures() {
		if f.late {
			continue // DEL has to undo the ADDs of the plugins before
		}
		t.warmFailure(f)
		before := t.Seen()
		a, got := f.add(t)
		if got.OK() {
			t.Notef("%s succeeded: %s", f.what, got)
		} else {
			t.WantNothingNew(before, f.what+" (and before its DEL)")
		}
		t.Del(a)
	}
}

// warmFailure lets an ADD fail once, and be deleted, as Warm does with one that succeeds: what plugins set up once and for all, such as a table
// without rules, is no leak. What a failure leaves of each pod comes again.
func (t *T) warmFailure(f failure) {
	empty := t.Seen()
	a, _ := f.add(t)
	t.Del(a)
	t.quiet(empty)
}

// addAfterFailed makes the failing ADDs the first calls on a node. So a failing ADD sets up
// what plugins set up once, such as a bridge.
func addAfterFailed(t *T) {
	for _, f := range t.failures() {
		if !f.late {
			a, _ := f.add(t)
			t.Del(a)
		}
	}
	a := t.NewAttachment()
	if got := t.Add(a); !got.OK() {
		t.Failf("the first ordinary ADD on a node, after failed ones and their DELs, fails: %s", got)
	}
	t.Del(a)
}
