package conform

// secondChecks are about what many checks stand on: pods beside each other.
var secondChecks = []Check{{
	Name: "basic/second-pod", Spec: "CNI 1.1.0, section 3, Lifecycle & Ordering",
	Says:  "a pod is attached while another is",
	Needs: []string{"basic/attach"}, run: func(t *T) { t.needSecondPod() },
}}

// needSecondPod ends a check if the list has but one attachment to give, such as a
// device of the machine; that is found out once. If it could give another and does
// not, that is a fault.
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
			c := t.Attached() // if not, it is not for the first pod that the second failed
			t.MustDel(c)
			t.must(c.Pod.Remove())
		}
	}
	if t.suite.second != "yes" {
		t.Unsupportedf("the list attaches one pod at a time; ADD of a second: %s", t.suite.second)
	}
}
