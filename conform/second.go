package conform

// secondChecks are about something that many checks need: two pods at the same time.
var secondChecks = []Check{{
	Name: "basic/second-pod", Level: Must, Spec: "CNI 1.1.0, section 3, Lifecycle & Ordering",
	Says:  "a pod can be attached while another one is attached",
	Needs: []string{"basic/attach"}, run: func(t *T) { t.needSecondPod() },
}}

// needSecondPod ends a check if the list can make only one attachment at a time, because it
// gives away a device of the machine, for example. The suite tries a second ADD once in a run.
// A second ADD that fails for another reason is a fault.
func (t *T) needSecondPod() {
	if t.suite.second == "" {
		a, b := t.NewAttachment(), t.NewAttachment()
		t.MustAdd(a)
		got := t.Add(b)
		t.Del(b)
		t.MustDel(a)
		t.must(a.Pod.Remove())
		t.must(b.Pod.Remove())
		t.suite.second = "yes"
		if !got.OK() {
			t.suite.second = got.String()
			c := t.Attached() // if this ADD fails too, the first pod was not the reason, and the check ends with Fail
			t.MustDel(c)
			t.must(c.Pod.Remove())
		}
	}
	if t.suite.second != "yes" {
		t.Unsupportedf("the list attaches only one pod at a time; ADD of a second pod: %s", t.suite.second)
	}
}
