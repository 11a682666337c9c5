package conform

import "fmt"

// parallelChecks are about several attachments at the same time.
var parallelChecks = []Check{
	{
		Name: "parallel/pods", Level: Must, Spec: "CNI 1.1.0, section 3, Lifecycle & Ordering: concurrent execution",
		Says:  "plugins work for many containers at once: each gets addresses of its own, and DELs at once leave nothing",
		Needs: []string{"leak/add-del"}, run: parallelPods,
	},
	{
		Name: "parallel/same-pod", Level: Should, Spec: "CNI 1.1.0, section 2, ADD: more than once, each time with another interface name; 0.4.0, General considerations: the key",
		Says:  "a container can be attached twice, under two interface names, and DEL of one attachment spares the other",
		Needs: []string{"leak/add-del"}, run: parallelSamePod,
	},
	{
		Name: "status/exhausted", Level: Should, Spec: "CNI 1.1.0, section 2, STATUS", Since: "1.1.0",
		Says:  "STATUS fails when something limited, such as the addresses, is used up",
		Needs: []string{"status/available", "leak/add-del"}, run: statusExhausted,
	},
}

// crowd is how many pods parallelPods attaches at once.
const crowd = 64

func parallelPods(t *T) {
	t.needSecondPod()
	before := t.Warm()
	pods := t.newAttachments(crowd)
	failed := 0
	var why Answer
	for _, got := range t.beside(pods, t.tryAdd) {
		if !got.OK() {
			failed++
			if got.Took >= why.Took { // the longest: calls after a call that hangs do not even start
				why = got
			}
		}
	}
	if failed == 0 {
		t.suite.room = crowd
		t.wantDistinct(pods)
	}
	for i, got := range t.beside(pods, t.tryDel) {
		if !got.OK() {
			t.Failf("of %d DELs at once, the DEL of %s fails: %s", crowd, pods[i].ID, got)
		}
	}
	for _, a := range pods {
		t.must(a.Pod.Remove())
	}
	if failed > 0 {
		// On this node plugins may have left things that are in the way of an ADD. Some of these
		// things end with a pod's network namespace, but the kernel removes them late.
		t.anotherNode()
		if room := t.room(crowd); room < crowd {
			t.Unsupportedf("the list attaches only %d pods, even one by one; this check needs %d", room, crowd)
		}
		t.Fatalf("of %d ADDs at once, %d fail, although they work one by one: %s", crowd, failed, why)
	}
	t.as(Should, func() { t.WantNothingNew(before, "ADDs and then DELs, all at once") })
}

// room returns how many pods the list attaches one by one, up to the number `most`.
func (t *T) room(most int) int {
	pods := t.newAttachments(most)
	n := 0
	for _, a := range pods {
		if !t.Add(a).OK() {
			break
		}
		n++
	}
	for _, a := range pods {
		t.Del(a)
		t.must(a.Pod.Remove())
	}
	return n
}

// wantDistinct reports pods that have the same address, unless the address stands in the list: then the list wants all pods to have it.
func (t *T) wantDistinct(pods []*Attachment) {
	owner := map[string]string{}
	var twice []string
	for _, a := range pods {
		r, err := readResult(a.Result)
		if err != nil {
			t.Failf("%v", err)
			return
		}
		for _, addr := range r.addresses(r.of(a)) {
			if addr.IsLinkLocalUnicast() || t.list().names(addr) {
				continue
			}
			if other := owner[addr.String()]; other != "" {
				twice = append(twice, fmt.Sprintf("%s and %s are both given %s", other, a.ID, addr))
			}
			owner[addr.String()] = a.ID
		}
	}
	if len(twice) > 0 {
		t.Failf("%s", some(twice, 5))
	}
}

// parallelSamePod tolerates a list that cannot attach a container twice: both interfaces
// may want the same default route.
func parallelSamePod(t *T) {
	before := t.Warm()
	a := t.Attached()
	alone := t.standing(a)
	b := &Attachment{ID: a.ID, Ifname: a.Ifname + "b", Pod: a.Pod, Version: a.Version}
	if got := t.Add(b); !got.OK() {
		t.Del(b)
		t.Del(a)
		t.Unsupportedf("the list attaches a container only once; ADD under another interface name: %s", got)
	}
	if got := t.Del(b); !got.OK() {
		t.Fatalf("DEL of the container's second attachment fails while the first is there: %s", got)
	}
	t.wantSpared(alone, "DEL of the container's second attachment", "the first")
	t.WantNothingNew(alone.node, "ADD and DEL of a container's second attachment")
	t.MustDel(a)
	t.must(a.Pod.Remove())
	t.WantNothingNew(before, "DEL of both attachments of a container")
}
