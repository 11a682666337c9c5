package notice

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/hold"
)

// Reasons of Events about releases.
const (
	ReleaseOwed  = "ReleaseOwed"  // what a pod had could not be given back yet
	ReleasePaid  = "ReleasePaid"  // now it is
	ReleasesOwed = "ReleasesOwed" // what pods of the node had could not be given back yet
	ReleasesPaid = "ReleasesPaid" // now it is
)

// Long is for how long a release is owed before people are told: most of what fails at first succeeds soon.
const Long = time.Minute

// mostPods is how many pods have an Event of what they owe at once, so that there is room for other Events, too, when all of a node's
// releases fail. The node's Event counts all of them.
const mostPods = 50

// Releases are the troubles that a node has with what it could not give back for a time. A pod's Events say what of it is owed. But
// the pod itself is mostly gone by then: DEL has succeeded, and so has the pod's deletion. Then `kubectl get events` alone shows
// these, and `kubectl describe pod` has no pod to describe. So an Event of the node, which `kubectl describe node` shows, counts all
// of it. The zero Releases know of none.
//
// A trouble begins when something is owed for long. It does not end with that, because a release has steps: when the link is given
// back at last, the address may fail next, or the ledger's record. It ends when the ledger has forgotten the owner.
type Releases struct {
	owners map[string][]api.OwedHold // by owner: what was owed of those for long, when something was last
	pods   map[Object]bool           // that have an Event, or are to have one
	node   []Trouble                 // the node's, or none
}

// Troubles returns the troubles, the node's first. holds are all that is owed now, however short. owner says which owners the
// ledger has, and is asked after holds were listed. long is Long, but in tests.
func (r *Releases) Troubles(node string, holds []api.OwedHold, owner func(hold.ID) (hold.Owner, bool), long time.Duration, now time.Time) []Trouble {
	r.note(holds, owner, long, now)
	if len(r.owners) > 0 {
		r.node = []Trouble{ofNode(node, r.owners)}
	} else if len(holds) == 0 { // else the young ones may come to be owed for long: it is not over
		r.node = nil
	}
	return append(slices.Clone(r.node), r.ofPods(node)...)
}

// note notes what is owed for long, and forgets the owners that the ledger has forgotten.
func (r *Releases) note(holds []api.OwedHold, owner func(hold.ID) (hold.Owner, bool), long time.Duration, now time.Time) {
	owed := map[string][]api.OwedHold{}
	begun := map[string]bool{}
	for _, h := range holds {
		owed[h.Owner] = append(owed[h.Owner], h)
		pod, is := podOf(h)
		if now.Sub(h.Since) >= long || r.owners[h.Owner] != nil || is && r.pods[pod] {
			begun[h.Owner] = true
		}
	}
	if r.owners == nil {
		r.owners = map[string][]api.OwedHold{}
	}
	for id := range r.owners {
		if owed[id] != nil {
			continue
		}
		if _, known := owner(hold.ID(id)); !known {
			delete(r.owners, id)
		}
	}
	for id := range begun {
		r.owners[id] = owed[id]
	}
}

// ofPods returns the troubles of pods, of at most mostPods, those that are owed the longest first. A pod that has one keeps it until
// all of the pod is given back.
func (r *Releases) ofPods(node string) (all []Trouble) {
	pods := map[Object][]api.OwedHold{}
	for _, holds := range r.owners {
		if pod, is := podOf(holds[0]); is {
			pods[pod] = append(pods[pod], holds...)
		}
	}
	for _, holds := range pods {
		slices.SortFunc(holds, older)
	}
	order := func(a, b Object) int {
		return cmp.Or(older(pods[a][0], pods[b][0]), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	}
	kept := map[Object]bool{}
	for pod := range r.pods {
		if pods[pod] != nil {
			kept[pod] = true
		}
	}
	r.pods = kept
	for _, pod := range slices.SortedFunc(maps.Keys(pods), order) {
		if !r.pods[pod] && len(r.pods) >= mostPods {
			continue
		}
		r.pods[pod] = true
		all = append(all, Trouble{
			Notice: Notice{About: pod, Reason: ReleaseOwed, Action: "Release", Text: fmt.Sprintf(
				"Node %s could not give back what this pod had of its network, and tries again. The pod is cut off, and nobody gets its addresses meanwhile. %s", node, told(pods[pod]))},
			Mended: Notice{About: pod, Reason: ReleasePaid, Action: "Release", Normal: true, Text: fmt.Sprintf("Node %s has given back all that this pod had of its network.", node)},
		})
	}
	return all
}

// ofNode returns the trouble of a node with owners.
func ofNode(node string, owners map[string][]api.OwedHold) Trouble {
	oldest := slices.MinFunc(slices.Concat(slices.Collect(maps.Values(owners))...), older)
	whose := "the node's own network"
	if pod, is := podOf(oldest); is {
		whose = "pod " + pod.Namespace + "/" + pod.Name
	}
	return Trouble{
		Notice: Notice{About: Node(node), Reason: ReleasesOwed, Action: "Release", Of: fmt.Sprint(len(owners)), Text: fmt.Sprintf(
			"Releases of %d pods and other owners are owed for longer than a minute; `berth owed` on the node lists them, and the node tries again. The oldest is of %s: %s", len(owners), whose, told([]api.OwedHold{oldest}))},
		Mended: Notice{About: Node(node), Reason: ReleasesPaid, Action: "Release", Normal: true, Text: "No release is owed any more."},
	}
}

// podOf returns the pod of a hold; is is false if it is no pod's.
func podOf(h api.OwedHold) (pod Object, is bool) {
	if h.Pod == nil || h.Pod.Name == "" {
		return pod, false
	}
	return podObject(h.Pod), true
}

func older(a, b api.OwedHold) int {
	return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.What, b.What))
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
