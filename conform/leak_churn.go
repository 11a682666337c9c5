package conform

import "time"

// manyChecks look for leaks that show only with many pods, or with their traffic.
var manyChecks = []Check{
	{
		Name: "leak/churn", Level: Should, Spec: "CNI 1.1.0, section 2, DEL",
		Says:  "pods can come and go without end: nothing is used up",
		Needs: []string{"parallel/pods"}, run: leakChurn,
	},
	{
		Name: "leak/churn-bare", Level: Should, Spec: "CNI 1.1.0, section 2, DEL: CNI_NETNS is optional",
		Says:  "pods can come and go without end, also if DEL has no CNI_NETNS: nothing is used up, not even where the suite cannot look",
		Needs: []string{"leak/churn", "del/without-netns", "leak/no-netns"}, run: leakChurnBare,
	},
	{
		Name: "leak/conntrack", Level: Own, Spec: "the suite's own, for containernetworking/plugins issues 123 and 1190",
		Says:  "after DEL the node remembers no flow that a port mapping sent to the pod: it would go to nobody, or to the next pod with that address",
		Needs: []string{"leak/add-del"}, run: leakConntrack,
	},
}

// The first pods of the churn come and go one by one, the others several at a time.
const (
	oneByOne = 50
	atOnce   = 8
)

// A churn that takes longer than churnTime ends once `enough` pods have come and gone. These are more
// pods than a /24 has addresses.
const (
	enough    = 260
	churnTime = 30 * time.Second
)

func leakChurn(t *T) {
	t.needSecondPod()
	before := t.Warm()
	t.churn(t.tryDel)
	if t.outcome == "" {
		t.WantNothingNew(before, "ADD and DEL of many pods")
	}
}

// leakChurnBare judges by what happens when a range is exhausted: a plugin may keep addresses in a database. The check leak/no-netns looks at
// the rest.
func leakChurnBare(t *T) {
	t.needSecondPod()
	t.churn(func(a *Attachment) (Answer, error) {
		bare := *a
		bare.Pod = nil
		return t.tryDel(&bare)
	})
}

// churn lets many containers come and go in few network namespaces, since the kernel
// can end only some 20 network namespaces in a second. It ends with the first call that fails.
func (t *T) churn(del func(*Attachment) (Answer, error)) {
	together := max(t.room(atOnce), 1) // a small range has addresses for fewer pods
	done := 0
	var pods []*Pod
	for began := time.Now(); done < t.suite.Churn && (done < enough || time.Since(began) < churnTime); {
		n := 1
		if done >= oneByOne {
			n = min(together, t.suite.Churn-done)
		}
		for len(pods) < n {
			pods = append(pods, t.NewPod())
		}
		all := make([]*Attachment, n)
		for i := range all {
			all[i] = t.newAttachment(pods[i])
		}
		added := t.beside(all, t.tryAdd)
		deleted := t.beside(all, del)
		for i, a := range all {
			switch {
			case t.outcome != "":
			case !added[i].OK():
				t.Leakf("after %d pods came and went, ADD fails: %s", done, added[i])
			case !deleted[i].OK():
				t.Failf("after %d pods came and went, DEL fails: %s", done, deleted[i])
			}
			if t.linkNow(a) != nil { // the interface is no leak, since a runtime ends the pod's namespace
				t.must(a.Pod.Remove())
				pods[i] = t.NewPod()
			}
		}
		if t.outcome != "" {
			return
		}
		done += n
	}
	if done < t.suite.Churn {
		t.Notef("the suite stopped early: %d pods take longer than %s", t.suite.Churn, churnTime)
	}
	t.Notef("%d pods came and went, the first %d one by one, the others %d at once", done, min(done, oneByOne), together)
}
