package share

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-net/berth/api/v1alpha1"
)

// Why a pool is not Ready, the worst first.
const (
	reasonDamaged          = "Damaged"          // the status cannot be read: the pool gives nothing
	reasonDeleting         = "Deleting"         // nodes still have blocks
	reasonClaimedTwice     = "ClaimedTwice"     // two nodes say that they have one block
	reasonNoBlock          = "NoBlock"          // a node has what is no block of the pool
	reasonOverlaps         = "Overlaps"         // another pool
	reasonOverlapsServices = "OverlapsServices" // the cluster's services
	reasonOverlapsNodes    = "OverlapsNodes"    // nodes' addresses
	reasonShrunk           = "Shrunk"           // nodes have blocks of CIDRs that were taken out of the spec
)

var worst = []string{reasonDamaged, reasonDeleting, reasonClaimedTwice, reasonNoBlock, reasonOverlaps, reasonOverlapsServices, reasonOverlapsNodes, reasonShrunk}

// wrong notes what is wrong with the pool.
func (p *pass) wrong(reason, format string, args ...any) {
	p.troubles = append(p.troubles, trouble{reason, fmt.Sprintf(format, args...)})
}

type trouble struct{ reason, message string }

// maxMessage is how long a condition's message is at most.
const maxMessage = 1000

// judge sets the pool's conditions.
func (p *pass) judge() {
	ready := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Ready", Message: "nothing is wrong"}
	slices.SortStableFunc(p.troubles, func(a, b trouble) int {
		return slices.Index(worst, a.reason) - slices.Index(worst, b.reason)
	})
	if len(p.troubles) > 0 {
		var all []string
		for _, t := range p.troubles {
			all = append(all, t.message)
		}
		ready.Status, ready.Reason = metav1.ConditionFalse, p.troubles[0].reason
		ready.Message = shorten(strings.Join(slices.Compact(all), "; "))
	}
	exhausted := metav1.Condition{
		Type: v1alpha1.ConditionExhausted, Status: metav1.ConditionFalse, Reason: "BlocksLeft", Message: "no node waits for a block",
	}
	if len(p.waiting) > 0 {
		slices.Sort(p.waiting)
		exhausted.Status, exhausted.Reason = metav1.ConditionTrue, "NoBlockLeft"
		exhausted.Message = shorten(fmt.Sprintf("%d nodes wait for a block: %s", len(p.waiting), strings.Join(p.waiting, ", ")))
	}
	for _, c := range []metav1.Condition{ready, exhausted} {
		c.ObservedGeneration = p.pool.Generation
		before := meta.FindStatusCondition(p.pool.Status.Conditions, c.Type)
		if bad := c.Reason != "Ready" && c.Reason != "BlocksLeft"; bad && (before == nil || before.Reason != c.Reason) {
			p.events = append(p.events, trouble{c.Reason, c.Message})
		}
		meta.SetStatusCondition(&p.pool.Status.Conditions, c)
	}
}

func shorten(text string) string {
	if len(text) > maxMessage {
		return strings.ToValidUTF8(text[:maxMessage], "") + " ..."
	}
	return text
}
