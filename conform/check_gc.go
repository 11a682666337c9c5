package conform

import (
	"errors"
	"os"
)

// gcChecks are about GC.
var gcChecks = []Check{
	{
		Name: "gc/nothing", Level: Should, Spec: "CNI 1.1.0, section 2, CNI operations and GC", Since: "1.1.0",
		Says:  "plugins that support 1.1.0 support GC, and complete it without error",
		Needs: []string{"basic/attach"}, run: gcNothing,
	},
	{
		Name: "gc/spares-listed", Level: Must, Spec: "CNI 1.1.0, section 2, GC", Since: "1.1.0",
		Says:  "GC spares what belongs to attachments that are listed as still valid",
		Needs: []string{"gc/nothing", "add/result"}, run: gcSparesListed,
	},
	{
		Name: "gc/other-network", Level: Must, Spec: "CNI 1.1.0, section 2, GC: the attachments of one network", Since: "1.1.0",
		Says:  "GC of a network spares what belongs to another",
		Needs: []string{"gc/spares-listed"}, run: gcOtherNetwork,
	},
	{
		Name: "gc/unlisted", Level: Should, Spec: "CNI 1.1.0, section 2, GC", Since: "1.1.0",
		Says:  "GC removes what belongs to attachments that are not listed, such as address reservations and firewall rules",
		Needs: []string{"gc/nothing", "del/netns-gone"}, run: gcUnlisted,
	},
	{
		Name: "gc/empty-list", Level: Should, Spec: "CNI 1.1.0, section 2, GC", Since: "1.1.0",
		Says:  "an empty list says that no attachment is valid any more",
		Needs: []string{"gc/unlisted"}, run: gcEmptyList,
	},
	{
		Name: "gc/continues", Level: Should, Spec: "CNI 1.1.0, section 2, GC", Since: "1.1.0",
		Says:  "GC cleans up the other attachments even if it cannot clean up one",
		Needs: []string{"gc/unlisted"}, run: gcContinues,
	},
	{
		Name: "gc/key", Level: Must, Spec: "CNI 1.1.0, section 2, GC: cni.dev/valid-attachments", Since: "1.1.0",
		Says:  "GC reads the valid attachments from the key that the specification has, also if no other key has them",
		Needs: []string{"gc/spares-listed"}, run: gcKey,
	},
	{
		Name: "gc/silent", Level: Should, Spec: "CNI 1.1.0, section 2, GC: no output on success", Since: "1.1.0",
		Says:  "a GC that succeeds writes nothing to standard output",
		Needs: []string{"gc/nothing"}, run: gcSilent,
	},
	{
		Name: "gc/delegated", Level: Must, Spec: "CNI 1.1.0, section 2, GC (it must forward), and section 4, Delegated plugin execution procedure (the error should be returned)", Since: "1.1.0",
		Says:  "a plugin forwards GC to the plugins that it delegates to, and returns their error",
		Needs: []string{"gc/nothing"}, run: gcDelegated,
	},
}

// collectable ends the check if the list forbids GC.
func (t *T) collectable() {
	if t.list().DisableGC {
		t.Unsupportedf(`the list has "disableGC": runtimes must not call GC`)
	}
}

// GC executes GC of all plugins, whatever they answer, as a runtime does. valid are the
// attachments that the runtime still knows (CNI 1.1, section 3, "Garbage-collecting a network"). GC
// returns the first answer that is no success or, if all plugins succeed, the last answer.
func (t *T) GC(valid ...*Attachment) Answer {
	var got Answer
	for i := range t.list().Plugins {
		if one := t.Exec(t.networkCall("GC", i, validKeys(valid))); i == 0 || got.OK() {
			got = one
		}
	}
	return got
}

// validKeys returns the list of valid attachments under the specification's key, and under the key
// that an earlier specification had. libcni still sends both keys (containernetworking/cni issue 1101).
func validKeys(valid []*Attachment) map[string]any {
	list := []map[string]string{} // not null, even if it is empty
	for _, a := range valid {
		list = append(list, map[string]string{"containerID": a.ID, "ifname": a.Ifname})
	}
	return map[string]any{"cni.dev/valid-attachments": list, "cni.dev/attachments": list}
}

// wantGC executes GC, which has to succeed.
func (t *T) wantGC(valid ...*Attachment) {
	if got := t.GC(valid...); !got.OK() {
		t.Failf("GC fails: %s", got)
	}
}

func gcNothing(t *T) {
	t.collectable()
	t.wantGC()
	a := t.Attached()
	t.wantGC(a)
	t.MustDel(a)
}

func gcSparesListed(t *T) {
	t.collectable()
	t.Warm()
	t.wantGC() // which may remove what the first pod has left
	a := t.Attached()
	before := t.standing(a)
	t.wantGC(a)
	t.wantSpared(before, "GC", "an attachment that is listed as valid")
	t.MustDel(a)
}

func gcOtherNetwork(t *T) {
	t.collectable()
	a := t.NewAttachment()
	a.Keys = map[string]any{"name": t.list().Name + "-other"}
	if got := t.Add(a); !got.OK() {
		t.Unsupportedf("the plugins attach nothing under another network's name: %s", got)
	}
	before := t.standing(a)
	t.wantGC()
	t.wantSpared(before, "GC", "an attachment of another network")
	t.MustDel(a)
}

func gcKey(t *T) {
	t.collectable()
	t.Warm()
	t.wantGC() // which may remove what the first pod has left
	a := t.Attached()
	before := t.standing(a)
	for i := range t.list().Plugins {
		keys := validKeys([]*Attachment{a})
		delete(keys, "cni.dev/attachments")
		if got := t.Exec(t.networkCall("GC", i, keys)); !got.OK() {
			t.Failf("GC with the valid attachments in cni.dev/valid-attachments alone fails: %s", got)
		}
	}
	t.wantSpared(before, "GC", "an attachment that cni.dev/valid-attachments alone lists")
	t.MustDel(a)
}

func gcSilent(t *T) {
	t.collectable()
	for i := range t.list().Plugins {
		if got := t.Exec(t.networkCall("GC", i, validKeys(nil))); got.OK() {
			t.wantSilent(got)
		}
	}
}

// gcUnlisted ends the pod's network namespace before GC: plugins may assume that the namespace of an
// attachment that is not listed has ended.
func gcUnlisted(t *T) {
	t.collectable()
	t.needSecondPod()
	t.Warm()
	listed := t.Attached()
	before := t.Seen()
	t.Orphan()
	t.wantGC(listed)
	t.WantNothingNew(before, "GC that does not list the attachment")
}

func gcEmptyList(t *T) {
	t.collectable()
	before := t.Warm()
	t.Orphan()
	t.wantGC()
	t.WantNothingNew(before, "GC with an empty list")
}

// gcContinues has three stale attachments. Two of them are broken, each in a way of its own. The check
// looks only for things of the third attachment. The plugins may answer that GC failed.
func gcContinues(t *T) {
	t.collectable()
	t.needSecondPod()
	t.Warm()
	var broken []*Attachment
	for _, spoil := range []func(*Pod) error{
		func(p *Pod) error { // the path exists and is no namespace
			return errors.Join(p.Remove(), os.WriteFile(p.Path, nil, 0o400))
		},
		func(p *Pod) error { // the path exists and is a folder
			return errors.Join(p.Remove(), os.Mkdir(p.Path, 0o700))
		},
	} {
		a := t.Attached()
		t.must(spoil(a.Pod))
		broken = append(broken, a)
	}
	before := t.Seen()
	t.Orphan()
	if got := t.GC(); !got.OK() {
		t.Notef("%s", got)
	}
	t.WantNothingNew(before, "GC of this attachment and of two whose network namespace is damaged")
	for _, a := range broken {
		t.must(os.Remove(a.Pod.Path))
	}
}

func gcDelegated(t *T) {
	t.collectable()
	s := t.standInFor("GC")
	c := t.networkCall("GC", s.plugin, validKeys(nil))
	c.Path = s.path
	got := t.Exec(c)
	switch {
	case !s.called():
		t.Failf("GC does not reach %s: %s", s.name, got)
	case got.OK():
		t.as(Should, func() { t.Failf("GC of %s fails, but the plugin that delegates to it succeeds: %s", s.name, got) })
	}
}
