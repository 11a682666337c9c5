package conform

// chainChecks are about lists of several plugins.
var chainChecks = []Check{
	{
		Name: "chain/check", Level: Must, Spec: "CNI 1.1.0, section 2, CHECK, and section 3, Checking an attachment", Since: "0.4.0",
		Says:  "after ADD of the whole list, CHECK with the list's last result succeeds for every plugin, also for those whose work a later plugin changed",
		Needs: []string{"check/well"}, run: chainCheck,
	},
	{
		Name: "chain/failed-add", Level: Should, Spec: "CNI 1.1.0, section 2, DEL: even if state is missing, and section 3, Lifecycle & Ordering: DEL even if ADD failed",
		Says:  "when a plugin's ADD fails, the list's DEL succeeds and cleans up, although that plugin and those after it were not added",
		Needs: []string{"del/never-added"}, run: chainFailedAdd,
	},
	{
		Name: "chain/del-one", Level: Should, Spec: "CNI 1.1.0, section 2, DEL, and section 3, Deleting an attachment: in reverse order",
		Says:  "a plugin's DEL spares what the plugins before it did, because their own DEL comes later",
		Needs: []string{"basic/attach"}, run: chainDelOne,
	},
}

func (t *T) needChain() {
	if len(t.list().Plugins) < 2 {
		t.Unsupportedf("the list has one plugin")
	}
}

func chainCheck(t *T) {
	t.needChain()
	t.checkable()
	a := t.Attached()
	if got := t.Check(a); !got.OK() {
		t.Failf("CHECK after ADD of the whole list fails: %s%s", got, t.blame(a, got))
	}
	t.MustDel(a)
}

// chainFailedAdd attaches a pod for each plugin of the list, and stops before that plugin, as if its
// ADD had failed. A runtime has no result then.
func chainFailedAdd(t *T) {
	t.needChain()
	trail := t.trailFrom(t.Warm())
	for failing := 1; failing < len(t.list().Plugins); failing++ {
		a := t.NewAttachment()
		for i := range failing {
			got := t.Exec(t.Call("ADD", i, a, a.Result))
			if !got.OK() {
				t.ordinaryFails(got)
			}
			a.Result = got.Stdout
		}
		step := "ADD of the plugins before " + t.list().Plugins[failing].Type + " and DEL of all"
		a.Result = nil
		if got := t.Del(a); !got.OK() {
			t.Failf("%s: %s", step, got)
		}
		t.must(a.Pod.Remove())
		trail.look(step)
	}
}

// chainDelOne checks that the interface stays until the DEL of the plugin that has made it. The plugins before that one, whose DELs
// come later, have made none.
func chainDelOne(t *T) {
	t.needChain()
	t.Warm()
	a := t.Attached()
	if t.linkNow(a) == nil {
		t.noInterface(a)
	}
	maker := t.makerOf(a, func(r *result) bool { return r.of(a) >= 0 })
	for i := len(t.list().Plugins) - 1; i >= 0; i-- {
		if i >= maker && t.linkNow(a) == nil {
			t.Fatalf("the interface is gone before the DEL of %s, plugin %d of the list", t.list().Plugins[i].Type, i+1)
		}
		if got := t.Exec(t.Call("DEL", i, a, a.Result)); !got.OK() {
			t.Fatalf("an ordinary DEL fails: %s", got)
		}
	}
}
