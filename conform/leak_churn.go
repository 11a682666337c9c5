package conform

// manyChecks look for what only many pods, or their traffic, show.
var manyChecks = []Check{
	{
		Name: "leak/churn", Spec: "CNI 1.1.0, section 2, DEL",
		Says:  "pods can come and go without end: nothing is used up",
		Needs: []string{"leak/add-del", "parallel/pods"}, run: leakChurn,
	},
	{
		Name: "leak/conntrack", Spec: "containernetworking/plugins issues 123 and 1190: not the specification",
		Says:  "no flow of a pod that is gone is remembered, since it would meet the next pod with its address",
		Needs: []string{"leak/add-del"}, run: leakConntrack,
	},
}

// Some pods of the churn come and go one by one; the others beside each other.
const (
	oneByOne = 50
	atOnce   = 8
)

func leakChurn(t *T) {
	t.needSecondPod()
	before := t.Warm()
	done := 0
	for done < t.suite.Churn {
		n := 1
		if done >= oneByOne {
			n = min(atOnce, t.suite.Churn-done)
		}
		pods := t.newAttachments(n)
		added := t.beside(pods, t.tryAdd)
		deleted := t.beside(pods, t.tryDel)
		for i, a := range pods {
			t.must(a.Pod.Remove())
			if !added[i].OK() {
				t.Leakf("after %d pods came and went, ADD fails: %s", done, added[i])
			} else if !deleted[i].OK() {
				t.Failf("after %d pods came and went, DEL fails: %s", done, deleted[i])
			}
		}
		if t.outcome != "" {
			return
		}
		done += n
	}
	t.Notef("%d pods came and went, the first %d one by one, the others %d at once", done, min(done, oneByOne), atOnce)
	t.WantNothingNew(before, "ADD and DEL of many pods")
}
