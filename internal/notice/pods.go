package notice

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/ipam"
)

// Reasons of Events about pods.
const (
	AddressesExhausted = "AddressesExhausted" // the pool of the pod has no address left on the node
	NoAddressYet       = "NoAddressYet"       // the node has no block of the pool yet, or there is no default pool
	PoolRefused        = "PoolRefused"        // the pod asks for a pool that is not there, or not for it
	ReleaseOwed        = "ReleaseOwed"        // what the pod had could not be given back yet
	ReleasePaid        = "ReleasePaid"        // now it is
)

// Reasons of Events about nodes.
const (
	ReleasesOwed = "ReleasesOwed" // what pods had could not be given back yet
	ReleasesPaid = "ReleasesPaid" // now it is
)

func podObject(p *api.Pod) Object {
	return Object{Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID}
}

// Unserved returns what people are told of a pod that has got no address, as err says. pool is the pool that the pod was to get one of;
// "": none was chosen. short says why the whole cluster has no more of that pool; "": it may have.
func Unserved(p *api.Pod, pool, short string, err error) Notice {
	n := Notice{About: podObject(p), Reason: PoolRefused, Action: "Attach", Of: pool}
	var full *ipam.ExhaustedError
	var numbered *api.Error
	switch {
	case errors.As(err, &full):
		n.Reason, n.Of = AddressesExhausted, full.Pool
	case errors.As(err, &numbered) && numbered.Code == cni.CodeTryAgain && short != "":
		n.Reason = AddressesExhausted
	case errors.As(err, &numbered) && numbered.Code == cni.CodeTryAgain:
		n.Reason = NoAddressYet
	}
	if n.Reason == PoolRefused {
		n.Of = err.Error()
	}
	n.Text = "Berth gives the pod no address: " + err.Error()
	if short != "" {
		n.Text += "; " + short
	}
	return n
}

// Long is for how long a release is owed before people are told: most of what fails at first succeeds soon.
const Long = time.Minute

// Owed returns the troubles that a node has with what it could not give back for a time, which is Long but in tests. A pod's Events say what of it is owed. But the pod itself
// is mostly gone by then: DEL has succeeded, and so has the pod's deletion. Then `kubectl get events` alone shows these, and `kubectl
// describe pod` has no pod to describe. So an Event of the node, which `kubectl describe node` shows, counts all of it.
func Owed(node string, holds []api.OwedHold, long time.Duration, now time.Time) (all []Trouble) {
	holds = slices.DeleteFunc(slices.Clone(holds), func(h api.OwedHold) bool { return now.Sub(h.Since) < long })
	if len(holds) == 0 {
		return nil
	}
	pods, owners := map[Object][]api.OwedHold{}, map[string]bool{}
	for _, h := range holds {
		owners[h.Owner] = true
		if h.Pod != nil && h.Pod.Name != "" {
			pods[podObject(h.Pod)] = append(pods[podObject(h.Pod)], h)
		}
	}
	order := func(a, b Object) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	}
	for _, pod := range slices.SortedFunc(maps.Keys(pods), order) {
		all = append(all, Trouble{
			Notice: Notice{About: pod, Reason: ReleaseOwed, Action: "Release", Text: fmt.Sprintf(
				"Node %s could not give back what this pod had of its network, and tries again. The pod is cut off, and nobody gets its addresses meanwhile. %s", node, told(pods[pod]))},
			Mended: Notice{About: pod, Reason: ReleasePaid, Action: "Release", Normal: true, Text: fmt.Sprintf("Node %s has given back all that this pod had of its network.", node)},
		})
	}
	whose := "the node's own network"
	if p := holds[0].Pod; p != nil && p.Name != "" {
		whose = "pod " + p.Namespace + "/" + p.Name
	}
	all = append(all, Trouble{
		Notice: Notice{About: Node(node), Reason: ReleasesOwed, Action: "Release", Of: fmt.Sprint(len(owners)), Text: fmt.Sprintf(
			"Releases of %d pods and other owners are owed for longer than a minute; `berth owed` on the node lists them, and the node tries again. The oldest is of %s: %s", len(owners), whose, told(holds[:1]))},
		Mended: Notice{About: Node(node), Reason: ReleasesPaid, Action: "Release", Normal: true, Text: "No release is owed any more."},
	})
	return all
}

// shown is how many holds a text names.
const shown = 3

// told says what is owed, and why.
func told(holds []api.OwedHold) (text string) {
	for i, h := range holds {
		if i == shown {
			return text + fmt.Sprintf("; and %d more", len(holds)-shown)
		}
		if i > 0 {
			text += "; "
		}
		text += fmt.Sprintf("%s (%s), owed since %s: %s", h.What, h.Kind, h.Since.UTC().Format(time.RFC3339), h.Error)
	}
	return text
}
