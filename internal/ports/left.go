package ports

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/kinds/link"
	"github.com/berth-net/berth/internal/patience"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/internal/stamp"
)

// ClearLeft removes host ports that the table of an agent that is not running maps to addresses of
// this agent's pools, if the pod is gone: otherwise the address's next pod would get what comes to
// the port, and no pod could have the port. A pod counts as gone if its link is not on the node, or
// if this agent is releasing it. If no pod of that agent is left, its whole table goes. Should that
// agent be only stopped, it makes its table again when it starts. ClearLeft waits for leftLimit at most, while another
// program keeps nftables busy, and goes on behind that: so it comes before rules that a later ADD needs.
func (p *Ports) ClearLeft() error {
	_, err := patience.Call(&p.clearing, "left", leftLimit, func() (struct{}, error) { return struct{}{}, p.clearLeft() }, nil)
	if errors.Is(err, patience.ErrHangs) {
		return errors.New("looking for host ports that other agents have left: nftables does not answer in time")
	}
	return err
}

// leftLimit is as long as a start waits for anything else that hangs (ground.Holding).
const leftLimit = 5 * time.Second

func (p *Ports) clearLeft() error {
	all, err := p.node.OtherPorts()
	if err != nil {
		return fmt.Errorf("looking for host ports that other agents have left: %w", err)
	}
	var errs []error
	theirs := map[netip.Addr]bool{}
	for table, mapped := range all {
		inPool := slices.DeleteFunc(mapped, func(m nft.Port) bool { return p.ground.PoolOf(m.Pod.Addr()) == "" })
		if instance, ok := stamp.OfTable(table); ok && len(inPool) > 0 {
			stay, err := p.clear(instance, inPool)
			errs = append(errs, err)
			for _, m := range stay {
				theirs[m.Pod.Addr()] = true
			}
		}
	}
	p.theirs.Store(&theirs)
	return errors.Join(errs...)
}

// Theirs returns those among claimed addresses of this agent's pools to which the tables of other agents map ports of the
// node. Before an agent has a pool, it looks for such ports (ClearLeft). Those that led to pods that were not gone then are
// looked for again, because nobody tells when these pods go.
func (p *Ports) Theirs(claimed []netip.Addr) (theirs []netip.Addr) {
	known := func() bool {
		all := p.theirs.Load()
		theirs = slices.DeleteFunc(slices.Clone(claimed), func(a netip.Addr) bool { return all == nil || !(*all)[a] })
		return len(theirs) > 0
	}
	if known() {
		if err := p.ClearLeft(); err != nil {
			p.Log.Warn("a pod gets another address, because another agent's host port may lead to the first one", "addresses", theirs, "err", err)
			return theirs
		}
		known()
	}
	return theirs
}

// clear is ClearLeft for the ports of one instance. It returns those that stay.
func (p *Ports) clear(instance string, mapped []nft.Port) (stay []nft.Port, err error) {
	left, err := p.podsOf(instance)
	if err != nil {
		return mapped, fmt.Errorf("looking for the pods of instance %s: %w", instance, err)
	}
	if _, served := root.Locked(root.Lock(instance, p.Netns.Ino)); served {
		return mapped, nil
	}
	var gone []nft.Port
	for _, m := range mapped {
		if left[hold.ID(m.Owner)] {
			stay = append(stay, m)
		} else {
			gone = append(gone, m)
		}
	}
	if len(gone) == 0 {
		return stay, nil
	}
	if err := p.node.UnmapOther(instance, gone, len(left) == 0); err != nil {
		return mapped, fmt.Errorf("removing the host ports that instance %s has left (or: nft delete table inet %s): %w", instance, stamp.Table(instance), err)
	}
	led := make([]nft.Mapping, len(gone))
	for i, m := range gone {
		led[i] = m.Mapping
	}
	p.Astray(led)
	p.Log.Warn("removed host ports of deleted pods from the table of an agent that is not running",
		"instance", instance, "ports", len(gone), "whole table", len(left) == 0)
	return stay, nil
}

// podsOf returns the owners of an instance's links on the node, without those that this agent is
// releasing.
func (p *Ports) podsOf(instance string) (map[hold.ID]bool, error) {
	links, err := p.node.LinksOf(instance)
	if err != nil {
		return nil, err
	}
	groups, err := stamp.GroupsOf(instance)
	if err != nil {
		return nil, err
	}
	pods := map[hold.ID]bool{}
	for _, l := range links {
		name, _ := link.NameOf(instance, groups, l)
		id, named := stamp.LinkID(name)
		if !named {
			return nil, fmt.Errorf("nobody can tell whose link %s is", l.Name)
		}
		if o, known := p.Ledger.Owner(id); !known || o.Wanted() {
			pods[id] = true
		}
	}
	return pods, nil
}
