package agent

import (
	"testing"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/nettest"
)

// A StatefulSet's pod is replaced by another of the same namespace and name. Records tell the two apart by UID, and late and repeated
// deletions of the former leave the successor alone, whatever they name it by.
func TestSuccessorOfTheSameName(t *testing.T) {
	r := start(t, "default=10.88.0.0/31")
	of := func(container, uid string) api.AddRequest {
		req := request(container, nettest.Pod(t))
		req.Args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=db;K8S_POD_NAME=web-0;K8S_POD_UID=" + uid
		return req
	}
	early := now()
	former := r.add(of("former", "u1"))
	r.del("former", true)
	successor := r.add(of("successor", "u2"))
	late := func(when string) {
		t.Helper()
		if _, _, err := r.Delete(t.Context(), key("former"), true, early); err != nil {
			t.Errorf("%s: %v", when, err)
		}
		r.del("former", true)
		r.wantAttached("successor")
		r.wantClean()
	}
	late("the successor is attached")
	r.del("successor", true)
	third := r.add(of("third", "u3"))
	if addresses(third)[0] != addresses(former)[0] && addresses(third)[0] != addresses(successor)[0] {
		t.Fatalf("the third pod has %v: want an address that a former one had", addresses(third))
	}
	if _, _, err := r.Delete(t.Context(), key("former"), true, early); err != nil {
		t.Error(err)
	}
	r.wantAttached("third")
	all := r.index.All()
	if len(all) != 1 || all[0].Record.Pod == nil || *all[0].Record.Pod != (api.Pod{Namespace: "db", Name: "web-0", UID: "u3"}) {
		t.Errorf("the records are %+v", all)
	}
	past := map[string]bool{}
	for _, p := range r.pasts(api.PastFilter{}) {
		if pod := p.Attachment.Pod; pod != nil && p.Ended != nil {
			past[pod.UID] = true
		}
	}
	if !past["u1"] || !past["u2"] || past["u3"] {
		t.Errorf("the pods that ended, as the history has them: %v", past)
	}
}
