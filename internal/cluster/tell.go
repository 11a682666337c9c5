package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/kube"
	"github.com/berth-net/berth/internal/notice"
)

// Unserved has people told that a pod has got no address (ground.Hooks). It waits for nobody.
func (c *Cluster) Unserved(pod *api.Pod, pool string, err error) {
	if c.Notices == nil || pod == nil || pod.Name == "" {
		return
	}
	short := ""
	if c.leases != nil && pool != "" {
		short = c.leases.Short(pool)
	}
	c.Notices.Say(notice.Unserved(pod, pool, short, err))
}

// Reasons of Events about the node's ways to other nodes, and about its own addresses.
const (
	nodesUnrouted = "NodesUnrouted"
	nodesRouted   = "NodesRouted"

	cidrsMissing   = "PodCIDRsMissing" // the cluster gives the node no podCIDRs
	cidrsGiven     = "PodCIDRsGiven"
	cidrsRefused   = "PodCIDRsRefused" // the agent has not taken the node's podCIDRs
	cidrsTaken     = "PodCIDRsTaken"
	cidrsUnsettled = "PodCIDRsUnsettled" // the agent has, but not done all that goes with it
	cidrsSettled   = "PodCIDRsSettled"
)

// troubles returns what people are told of for as long as it lasts: first what the node itself has, so that there is room for it
// when many pods have troubles.
func (c *Cluster) troubles() (all []notice.Trouble) {
	if err := c.kube.Lacks(); err != nil {
		all = append(all, c.lacking(err))
	}
	if unrouted := c.unrouted(); len(unrouted) > 0 {
		text := fmt.Sprintf("This node has no way to the pods of node %s: %s", unrouted[0].Node, unrouted[0].Reason)
		if more := len(unrouted) - 1; more > 0 {
			text += fmt.Sprintf("; nor to those of %d more nodes, which `berth status` lists", more)
		}
		all = append(all, c.trouble(nodesUnrouted, "Route", text, nodesRouted, "This node has ways to the pods of all other nodes."))
	}
	return append(all, c.releases.Troubles(c.node, c.Owed(), c.core.Ledger.Owner, c.Long, time.Now())...)
}

// lacking returns the trouble that the node has with its podCIDRs (kube.Watcher.Lacks). The text of its end is true whatever comes next.
func (c *Cluster) lacking(err error) notice.Trouble {
	const action = "TakeAddresses"
	switch text := sentence(err); {
	case errors.Is(err, kube.ErrNone):
		return c.trouble(cidrsMissing, action, text, cidrsGiven, "This node has CIDRs for its pods now.")
	case errors.Is(err, kube.ErrUnsettled):
		return c.trouble(cidrsUnsettled, action, text, cidrsSettled, "That change of this node's CIDRs is over.")
	default:
		return c.trouble(cidrsRefused, action, text, cidrsTaken, "This node refuses no CIDR any more that the cluster means for its pods.")
	}
}

// sentence returns an error's text as a sentence begins.
func sentence(err error) string {
	text := err.Error()
	return strings.ToUpper(text[:1]) + text[1:]
}

// trouble returns a trouble of the node.
func (c *Cluster) trouble(reason, action, text, mended, well string) notice.Trouble {
	about := notice.Node(c.node)
	return notice.Trouble{
		Notice: notice.Notice{About: about, Reason: reason, Action: action, Text: text, Of: text},
		Mended: notice.Notice{About: about, Reason: mended, Action: action, Text: well, Normal: true},
	}
}

// unrouted returns the nodes to whose pods there is no way, in order.
func (c *Cluster) unrouted() (all []api.UnroutedNode) {
	for node, err := range c.Peers.Failed() {
		all = append(all, api.UnroutedNode{Node: node, Reason: err.Error()})
	}
	slices.SortFunc(all, func(a, b api.UnroutedNode) int { return cmp.Compare(a.Node, b.Node) })
	return all
}

// mostUnrouted is how many nodes a status names.
const mostUnrouted = 100

// Status shows how the node's part of the cluster is; nil: the node belongs to no cluster.
func (c *Cluster) Status() *api.ClusterStatus {
	if c.Notices == nil {
		return nil
	}
	unrouted, counts := c.unrouted(), c.Notices.Counts()
	st := &api.ClusterStatus{
		Node: c.node, Failures: c.kube.Failures(), UnroutedNodes: len(unrouted), Unrouted: unrouted[:min(len(unrouted), mostUnrouted)],
		Events: map[string]uint64{
			api.ClusterEventWritten: counts.Written, api.ClusterEventRetried: counts.Retried, api.ClusterEventRefused: counts.Refused, api.ClusterEventDropped: counts.Dropped,
		},
	}
	if err := c.kube.Lacks(); err != nil {
		st.Lacks = err.Error()
	}
	return st
}
