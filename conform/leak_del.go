package conform

// leakChecks look for things that are left when a pod is gone.
var leakChecks = []Check{
	{
		Name: "leak/del-only", Spec: "CNI 1.1.0, section 2, DEL (it should)",
		Says:  "DEL of what was never added leaves nothing new",
		Needs: []string{"leak/add-del"}, run: leakDelOnly,
	},
	{
		Name: "leak/netns-gone", Spec: "CNI 1.1.0, section 2, DEL (it should)",
		Says:  "DEL cleans up the node even when the pod's network namespace is gone",
		Needs: []string{"del/netns-gone"}, run: leakNetnsGone,
	},
	{
		Name: "leak/no-netns", Spec: "CNI 1.1.0, section 2, DEL (it should)",
		Says:  "DEL cleans up the node even without CNI_NETNS, which is optional",
		Needs: []string{"del/without-netns"}, run: leakNoNetns,
	},
	{
		Name: "leak/same-id", Spec: "CNI 1.1.0, section 2, ADD: not twice without a DEL, and DEL (it should)",
		Says:  "after DEL a container's id can be added again, and the second DEL leaves nothing",
		Needs: []string{"leak/add-del"}, run: leakSameID,
	},
}

// leakAddDel looks twice. If each pod gets the address of the pod before it, the remains of a
// pod look like things of the next pod. So the second look is at a pod that comes and goes
// beside another one.
func leakAddDel(t *T) {
	before := t.Warm()
	a := t.Attached()
	t.MustDel(a)
	t.WantNothingNew(before, "ADD and DEL")
	if t.outcome != "" {
		return
	}
	t.Attached()
	before = t.Seen()
	a = t.NewAttachment()
	if !t.Add(a).OK() {
		return // the list attaches one pod at a time; if that is a fault, basic/second-pod finds it
	}
	t.MustDel(a)
	t.WantNothingNew(before, "ADD and DEL beside another pod")
}

// leakDelOnly does not judge the answer: the check del/never-added judges it.
func leakDelOnly(t *T) {
	before := t.Warm()
	a := t.NewAttachment()
	t.Del(a)
	t.WantNothingNew(before, "DEL of what was never added")
}

func leakNetnsGone(t *T) {
	before := t.Warm()
	a := t.Orphan()
	t.MustDel(a)
	t.WantNothingNew(before, "ADD, the end of the pod's network namespace, and DEL")
}

// leakNoNetns executes DEL without CNI_NETNS, like a runtime that has closed the network namespace
// already, or has forgotten the namespace's path. The namespace ends later.
func leakNoNetns(t *T) {
	before := t.Warm()
	a := t.Attached()
	pod := a.Pod
	a.Pod = nil
	t.MustDel(a)
	t.must(pod.Remove())
	t.WantNothingNew(before, "ADD, DEL without CNI_NETNS, and the end of the pod's network namespace")
}

func leakSameID(t *T) {
	before := t.Warm()
	a := t.Attached()
	t.MustDel(a)
	t.must(a.Pod.Remove())
	a.Pod = t.NewPod()
	if got := t.Add(a); !got.OK() {
		t.Fatalf("the second ADD of an id fails, after the DEL of the first: %s", got)
	}
	t.MustDel(a)
	t.must(a.Pod.Remove())
	t.WantNothingNew(before, "ADD, DEL, ADD of the same id in another pod, and DEL")
}
