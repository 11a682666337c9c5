package conform

import (
	"regexp"
	"slices"
	"strings"
)

// leakChecks look for things that are left when a pod is gone.
var leakChecks = []Check{
	{
		Name: "leak/del-only", Level: Should, Spec: "CNI 1.1.0, section 2, DEL",
		Says:  "DEL of what was never added leaves nothing new",
		Needs: []string{"leak/add-del"}, run: leakDelOnly,
	},
	{
		Name: "leak/netns-gone", Level: Should, Spec: "CNI 1.1.0, section 2, DEL",
		Says:  "DEL cleans up the node even when the pod's network namespace is gone",
		Needs: []string{"del/netns-gone"}, run: leakNetnsGone,
	},
	{
		Name: "leak/no-netns", Level: Should, Spec: "CNI 1.1.0, section 2, DEL",
		Says:  "DEL cleans up the node even without CNI_NETNS, which is optional",
		Needs: []string{"del/without-netns"}, run: leakNoNetns,
	},
	{
		Name: "leak/same-id", Level: Should, Spec: "CNI 1.1.0, section 2, ADD: not twice without a DEL, and DEL",
		Says:  "after DEL a container's id can be added again, and the second DEL leaves nothing",
		Needs: []string{"leak/add-del"}, run: leakSameID,
	},
}

// leakAddDel looks twice. If each pod gets the address of the pod before it, the remains of a
// pod look like things of the next pod. So the second look is at a pod that comes and goes
// beside another one.
func leakAddDel(t *T) {
	empty := t.Seen()
	before := t.Warm()
	t.noteOnce(empty.New(before))
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

// noteOnce notes what the first pod left. What it changed comes before what it made: such a change is easily overlooked.
func (t *T) noteOnce(left []string) {
	var changed, made []string
	for _, line := range brief(left) {
		switch section, _, _ := strings.Cut(line, " "); {
		case inAll(line, left): // the kernel sets the others with it
		case section == "sysctl" || section == "setting":
			changed = append(changed, line)
		default:
			made = append(made, line)
		}
	}
	if all := append(changed, made...); len(all) > 0 {
		t.Notef("the first pod left these, and they are taken for set up once and for all:\n%s", some(all, 20))
	}
}

// confOf matches a sysctl of a link, or of links to come.
var confOf = regexp.MustCompile(`^(sysctl ipv[46]/conf/)[^/]+(/.*)$`)

// inAll reports whether lines have the sysctl of a line for all links, too, with the same value.
func inAll(line string, lines []string) bool {
	all := confOf.ReplaceAllString(line, "${1}all$2")
	return all != line && slices.Contains(lines, all)
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
// already, or has forgotten the namespace's path. The namespace ends later. What DEL left in a file that the suite cannot read, such as a
// database, shows when the same id is attached again.
func leakNoNetns(t *T) {
	before := t.Warm()
	a := t.Attached()
	pod := a.Pod
	a.Pod = nil
	t.MustDel(a)
	t.must(pod.Remove())
	t.WantNothingNew(before, "ADD, DEL without CNI_NETNS, and the end of the pod's network namespace")
	a.Pod = t.NewPod()
	if got := t.Add(a); !got.OK() {
		t.Fatalf("the second ADD of an id fails, after a DEL without CNI_NETNS of the first: %s", got)
	}
	t.MustDel(a)
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
