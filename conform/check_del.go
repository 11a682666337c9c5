package conform

import (
	"os"
	"time"

	"github.com/berth-net/berth/conform/oracle"
)

// delChecks are about DEL.
var delChecks = []Check{
	{
		Name: "del/idempotent", Level: Must, Early: Should, Spec: "CNI 1.1.0, section 2, DEL; 0.4.0, General considerations",
		Says:  "DEL of what is deleted already succeeds",
		Needs: []string{"basic/attach"},
		run: func(t *T) {
			a := t.Attached()
			t.MustDel(a)
			for _, times := range []string{"second", "third"} {
				t.wantDel(a, "the "+times+" DEL")
			}
		},
	},
	{
		Name: "del/without-prev-result", Level: Should, Spec: "CNI 1.1.0, section 2, DEL: without error if prevResult is empty; 0.4.0, Parameters, DEL: as many resources as possible",
		Says:  "DEL without prevResult succeeds, and leaves nothing",
		Needs: []string{"leak/add-del"}, run: delWithoutPrevResult,
	},
	{
		Name: "del/never-added", Level: Must, Early: Should, Spec: "CNI 1.1.0, section 2, DEL: success if what is to be deleted is missing",
		Says:  "DEL of what was never added succeeds",
		Needs: []string{"del/idempotent", "del/without-prev-result"},
		run:   func(t *T) { t.wantDel(t.NewAttachment(), "DEL of a container that was never added") },
	},
	{
		Name: "del/netns-gone", Level: Should, Spec: "CNI 1.1.0, section 2, DEL, and 0.4.0, Parameters, DEL: even if the network namespace is gone, unless the plugin's IPAM cannot do without it",
		Says:  "DEL succeeds if the path of the network namespace does not exist any more, and frees the addresses",
		Needs: []string{"leak/add-del"},
		run: func(t *T) {
			t.delBereft(func(a *Attachment) string {
				t.must(a.Pod.Remove())
				return "DEL with a CNI_NETNS that does not exist any more"
			})
		},
	},
	{
		Name: "del/netns-not-one", Level: Own, Spec: "CNI 1.1.0, section 2, DEL: even if the network namespace is gone (it should; that a file may be left at its path is the suite's own)",
		Says:  "DEL succeeds if the path of the network namespace is an ordinary file, as it is after an unmount, and frees the addresses",
		Needs: []string{"del/netns-gone"},
		run: func(t *T) {
			t.delBereft(func(a *Attachment) string {
				t.must(a.Pod.Remove())
				t.must(os.WriteFile(a.Pod.Path, nil, 0o400))
				return "DEL with a CNI_NETNS that is an ordinary file"
			})
		},
	},
	{
		Name: "del/without-netns", Level: Should, Spec: "CNI 1.1.0, section 2, DEL: CNI_NETNS is optional; 0.4.0, Parameters, DEL",
		Says:  "DEL without CNI_NETNS succeeds, and frees the addresses",
		Needs: []string{"leak/add-del"},
		run: func(t *T) {
			t.delBereft(func(a *Attachment) string {
				a.Pod = nil
				return "DEL without CNI_NETNS"
			})
		},
	},
	{
		Name: "del/after-failed-add", Level: Should, Spec: "CNI 1.1.0, section 2, DEL: best effort, and section 3, Lifecycle & Ordering; 0.4.0, Parameters, DEL",
		Says:  "the DEL of all plugins of the list, which has to follow a failed ADD, succeeds",
		Needs: []string{"del/never-added", "del/netns-gone"}, run: delAfterFailedAdd, usual: true,
	},
	{
		Name: "del/spares-successor", Level: Own, Spec: "CNI 1.1.0, section 2, DEL: several calls for the same attachment (it must take them; that others are spared is the suite's own)",
		Says:  "a DEL that is repeated late spares the pod that has the address by then",
		Needs: []string{"add/result", "leak/add-del", "del/idempotent"}, run: delSparesSuccessor,
	},
}

// delSparesSuccessor waits until the first pod's things are gone, which may take a while after
// that pod's DEL. Otherwise the check would blame the late DEL for the end of these things.
func delSparesSuccessor(t *T) {
	before := t.Warm()
	a := t.Attached()
	t.MustDel(a)
	t.quiet(before)
	b := t.Attached()
	was := t.standing(b)
	t.wantDel(a, "the late DEL")
	t.wantSpared(was, "the late DEL of a pod", "another")
	t.MustDel(b)
}

// wantDel executes DEL, which has to succeed.
func (t *T) wantDel(a *Attachment, what string) {
	if got := t.Del(a); !got.OK() {
		t.Failf("%s fails: %s", what, got)
	}
}

func delAfterFailedAdd(t *T) {
	t.Warm()
	for _, f := range t.failures() {
		a, got := f.add(t)
		if got.OK() {
			t.Notef("%s succeeded: %s", f.what, got)
		}
		t.wantDel(a, "DEL after "+f.what)
	}
}

func delWithoutPrevResult(t *T) {
	before := t.Warm()
	a := t.Attached()
	a.Result = nil
	t.wantDel(a, "DEL without prevResult")
	t.WantNothingNew(before, "DEL without prevResult")
}

// delBereft executes DEL after take has taken something from an attachment. delBereft looks only for
// addresses that DEL did not free, which plugins keep in files. The leak checks look for everything
// else.
func (t *T) delBereft(take func(*Attachment) string) {
	before := t.Warm()
	a := t.Attached()
	what := take(a)
	if a.Pod != nil {
		t.ended(before)
	}
	t.wantDel(a, what)
	if len(t.suite.StateDirs) == 0 {
		t.Notef("the suite cannot see whether addresses were freed: no state folder is given")
		return
	}
	t.WantNothingNew(before.And(t.Seen().Without("file", "file-content")), what)
}

// ended waits until a pod's links are gone. The kernel takes a network namespace and its links
// down in the background, some time after the namespace's end.
func (t *T) ended(before oracle.State) {
	for end := time.Now().Add(DefaultGrace); time.Now().Before(end); time.Sleep(poll) {
		if len(before.Only("link").New(t.Seen().Only("link"))) == 0 {
			return
		}
	}
}
