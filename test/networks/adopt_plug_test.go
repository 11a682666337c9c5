package networks

import (
	"slices"
	"testing"

	"github.com/berth-net/berth/internal/kube/kubetest"
	"github.com/berth-net/berth/internal/nad"
	"github.com/berth-net/berth/internal/nettest"
)

// A pod that the former CNI attached keeps its networks, whatever its annotation asks for later: nobody knows which of them the annotation
// meant. Berth's own pod gets what it asks for beside it, and the DELs of both leave nothing.
func TestAdoptedIsNotPlugged(t *testing.T) {
	b := newBoth(t, false)
	b.define("two", `{"cniVersion":"1.0.0","name":"two","type":"berth-cni"}`)
	for _, name := range []string{"old", "new"} {
		b.pod("default", name, kubetest.Object{})
	}
	old, own := nettest.Pod(t), nettest.Pod(t)
	b.runtime().attach("old", old, b.storage())
	b.wantAdopted(nil, "old eth0 adopted", "old net1 adopted")
	inside := nettest.Snapshot(t, old).Deliberate().String()
	request := request{plugin: "berth-cni", container: "new", namespace: "default", name: "new", netns: own.Ref().Path, version: "1.0.0"}
	request.verb = "ADD"
	_, err := b.exec(request)
	must(t, err)
	for _, name := range []string{"old", "new"} {
		b.pod("default", name, kubetest.Object{nad.KeyNetworks: "two@more,two@most"})
	}
	nettest.Eventually(t, "Berth's own pod to get what it asks for", func() bool { return slices.Equal(b.links(own), []string{"eth0", "more", "most"}) })
	for _, annotations := range []kubetest.Object{{nad.KeyNetworks: "two@more"}, {}} { // old has had its turn when new has had its second one
		for _, name := range []string{"old", "new"} {
			b.pod("default", name, annotations)
		}
		nettest.Eventually(t, "Berth's own pod to lose what it does not ask for", func() bool { return len(b.links(own)) == len(annotations)+1 })
	}
	if got := nettest.Snapshot(t, old).Deliberate().String(); got != inside {
		t.Errorf("the adopted pod has\n%s\nand had\n%s", got, inside)
	}
	request.verb = "DEL"
	_, err = b.exec(request)
	must(t, err)
	_, err = b.Exec("DEL", "old", old.Ref().Path)
	must(t, err)
	nettest.Eventually(t, "nothing to be left of both", func() bool { return len(b.files()) == 0 && len(b.links(old)) == 0 && len(b.links(own)) == 0 })
	if got := b.cached(); len(got) > 0 {
		t.Errorf("libcni's cache has kept %v", got)
	}
	b.Audit(t)
}
