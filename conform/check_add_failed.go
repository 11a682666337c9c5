package conform

import (
	"encoding/json"

	"github.com/berth-net/berth/conform/oracle"
)

// failure is an ADD that cannot succeed.
type failure struct {
	what string
	add  func(*T) (*Attachment, Answer)
	late bool // plugins before the one that fails have succeeded, and cannot undo their part
}

// failures returns the failures that are possible with the list: an ADD can fail before a plugin
// has done anything, in the middle, or as late as possible.
func (t *T) failures() []failure {
	all := []failure{
		{what: nowhere, add: (*T).addNowhere},
		{what: "ADD of an interface that the container has already", add: (*T).addTwice},
	}
	if _, ok := t.ipam(); ok {
		all = append(all, failure{what: "ADD whose IPAM plugin fails", add: (*T).addWithoutIPAM})
	}
	if len(t.suite.list.Plugins) > 1 {
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
	if err := json.Unmarshal(t.suite.list.Plugins[0].Keys["ipam"], &ipam); err != nil {
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
	last := len(t.suite.list.Plugins) - 1
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
	before := t.Warm()
	judged := 0
	for _, f := range t.failures() {
		a, got := f.add(t)
		if got.OK() {
			t.Notef("%s succeeded: %s", f.what, got)
		}
		if del := t.Del(a); !del.OK() {
			t.Notef("DEL after %s fails: %s", f.what, del)
			before = t.Seen()
			continue
		}
		judged++
		before = t.wantNothingNew(before, f.what+" and DEL")
	}
	if judged == 0 {
		t.Unsupportedf("every DEL after a failed ADD fails, so that the suite cannot judge what is left")
	}
}

func addFailedUndone(t *T) {
	before := t.Warm()
	for _, f := range t.failures() {
		if f.late {
			continue // DEL has to undo the ADDs of the plugins before
		}
		a, got := f.add(t)
		if got.OK() {
			t.Notef("%s succeeded: %s", f.what, got)
		} else {
			t.WantNothingNew(before, f.what+" (and before its DEL)")
		}
		t.Del(a)
		before = t.Seen()
	}
}

// wantNothingNew is WantNothingNew for one of several steps. It returns the state before the
// next step, so that the check reports things that one step has left only once.
func (t *T) wantNothingNew(before oracle.State, after string) oracle.State {
	t.WantNothingNew(before, after)
	return t.Seen()
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
