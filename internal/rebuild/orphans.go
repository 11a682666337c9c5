package rebuild

import (
	"errors"
	"fmt"

	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/deletions"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/link"
	"github.com/berth-net/berth/internal/node"
	"github.com/berth-net/berth/internal/stamp"
)

// ErrOrphans says that this is the first start of a root, and that pods are here whose agent
// nobody can find: its state folder and its run folder are both lost.
var ErrOrphans = errors.New("the node has pods of an agent that does not run")

// RefuseOrphans refuses to begin a root over pods of an instance that nobody serves. Most
// likely these are the root's own pods, and somebody took the agent's state away. Under a new
// instance the pods would be nobody's, and their DELs would find nothing to do. Links that
// queued deletions name do not count: the deletions adopt them. Options.Moved says that the
// pods are given up, or are another agent's.
func RefuseOrphans(d *daemon.Daemon, n *node.Node) error {
	if d.Moved {
		return nil
	}
	links, err := rtnl.Steady(func() ([]rtnl.Link, error) {
		return n.Conn.Veths(func(l rtnl.Link) (bool, error) { return wholeOfAny(l), nil })
	})
	if err != nil {
		return err
	}
	served := map[string]bool{}
	var orphans []rtnl.Link
	for _, l := range links {
		s, _ := stamp.ParseEnd(l.Alias)
		if _, asked := served[s.Instance]; !asked {
			served[s.Instance] = d.Others(s.Instance)
		}
		if l.Name = s.Link(); !served[s.Instance] {
			orphans = append(orphans, l)
		}
	}
	left, err := undoomed(orphans, func() ([]deletions.Entry, error) {
		q, err := deletions.Open(d.Root)
		if err != nil {
			return nil, err
		}
		pending, err := q.Pending()
		return pending, errors.Join(err, q.Close())
	})
	if err != nil || len(left) == 0 {
		return err
	}
	s, _ := stamp.ParseEnd(left[0].Alias)
	return fmt.Errorf("%w: no agent serves instance %s, but its pods have links on the node (%d, such as %s), and root %s is new: "+
		"if the instance is the former one of this root, whose state is lost, put the root's folders back, or write %s into %s and run %s; "+
		"if the instance belongs to another agent of this node, start that agent first, or give both agents the host's /run, which has its lock; or delete these pods; "+
		"or use --moved, if nobody will ever delete these pods here",
		ErrOrphans, s.Instance, len(left), left[0].Name, d.Root, s.Instance, d.Root.Instance(), rebuildCommand(d.Root))
}

// wholeOfAny reports whether a link is whole, and belongs to an instance of Berth's, which the link's
// alias names.
func wholeOfAny(l rtnl.Link) bool {
	s, stamped := stamp.Parse(l.Alias)
	groups, err := stamp.GroupsOf(s.Instance)
	return stamped && err == nil && link.IsWhole(groups, l) || stamp.IsWholePort(l.Alias, l.Group)
}
