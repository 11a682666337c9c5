package cluster

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/berth-net/berth/api"
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
	cidrsRefused  = "PodCIDRsRefused" // the agent has not taken the node's podCIDRs
	cidrsTaken    = "PodCIDRsTaken"
)

// troubles returns what people are told of for as long as it lasts.
func (c *Cluster) troubles() []notice.Trouble {
	all := notice.Owed(c.node, c.Owed(), c.Long, time.Now())
	if err := c.kube.Lacks(); err != nil {
		all = append(all, notice.Trouble{
			Notice: notice.Notice{About: notice.Node(c.node), Reason: cidrsRefused, Action: "TakeAddresses", Text: "Pods of this node get no addresses of the CIDRs that the cluster means for them: " + err.Error(), Of: err.Error()},
			Mended: notice.Notice{About: notice.Node(c.node), Reason: cidrsTaken, Action: "TakeAddresses", Normal: true, Text: "Pods of this node get addresses of the CIDRs that the cluster means for them."},
		})
	}
	if unrouted := c.unrouted(); len(unrouted) > 0 {
		text := fmt.Sprintf("This node has no way to the pods of node %s: %s", unrouted[0].Node, unrouted[0].Reason)
		if more := len(unrouted) - 1; more > 0 {
			text += fmt.Sprintf("; nor to those of %d more nodes, which `berth status` lists", more)
		}
		all = append(all, notice.Trouble{
			Notice: notice.Notice{About: notice.Node(c.node), Reason: nodesUnrouted, Action: "Route", Text: text, Of: text},
			Mended: notice.Notice{About: notice.Node(c.node), Reason: nodesRouted, Action: "Route", Normal: true, Text: "This node has ways to the pods of all other nodes."},
		})
	}
	return all
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
		Events: map[string]uint64{api.ClusterEventWritten: counts.Written, api.ClusterEventFailed: counts.Failed, api.ClusterEventDropped: counts.Dropped},
	}
	if err := c.kube.Lacks(); err != nil {
		st.Lacks = err.Error()
	}
	return st
}
