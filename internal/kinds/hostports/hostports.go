// Package hostports is the kind of a pod's host ports: what comes to these ports of the node
// goes to the pod. Host ports are elements of maps in the agent's nftables table (kinds/table), so that
// one transaction maps all of a pod's ports, and one transaction unmaps the ports of many pods.
//
// The hold has no cut of its own, because the link's cut keeps the pod from hearing anything. The hold
// leaves no connections behind either: connections name the pod's address, so that the hold of the
// pod's traffic (kinds/flows) forgets them.
//
// A pod whose link and address are other plugins' has neither. Its host ports are bound to its link
// (nft.Mapping.Via): they lead to nobody who has the address later. Release closes them, has the kernel
// forget their connections, and only then unmaps them.
package hostports

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/nft"
)

// KindName is the name of the kind.
const KindName = "hostports"

// Space is the space of the names that claim ports of the node. These names need no rest (a time in
// which nobody else may claim them): once the holds of an owner are gone, nothing leads from its ports
// to it.
const Space = "hostport"

// batch is how many pods' host ports one transaction removes.
const batch = 256

// Spec has the host ports of a pod.
type Spec struct {
	Link     string        `json:"link"`     // the name of the pod's link; "": another plugin's, to which the mappings are bound
	Mappings []nft.Mapping `json:"mappings"` // sorted; none: nobody knows them, because the agent has adopted the pod
}

// Kind returns KindName.
func (s *Spec) Kind() string { return KindName }

// String names the host ports by the pod's link or, if that is another plugin's, by the pod's lowest address.
func (s *Spec) String() string {
	if s.Link != "" || len(s.Mappings) == 0 {
		return "host ports of " + s.Link
	}
	pod := func(a, b nft.Mapping) int { return a.Pod.Addr().Compare(b.Pod.Addr()) }
	return "host ports of " + slices.MinFunc(s.Mappings, pod).Pod.Addr().String()
}

// Name returns the name by which the ledger knows a mapping's port of the node.
func Name(m nft.Mapping) hold.Name {
	return hold.Name{Space: Space, Name: m.Protocol + "/" + m.Host.String()}
}

// Maps are the maps in the agent's table (table.Keeper).
type Maps interface {
	Map(hold.ID, []nft.Mapping) error
	Close([]hold.ID) error
	Unmap([]hold.ID) error
	Mapped() (map[hold.ID][]nft.Mapping, error)
}

// Options of New.
type Options struct {
	Maps Maps
	// Link returns the name of an owner's link.
	Link func(hold.ID) string
	// Left removes what a lost agent's table maps to pods that are gone. Release calls Left for an
	// adopted owner, because such a table may have the owner's ports. Optional.
	Left func() error
	// Exposed is called with ports that Acquire has mapped, if older connections may have had these
	// ports. Optional.
	Exposed func([]nft.Mapping)
	// Forget has the kernel forget the connections that bound host ports have led to their pods. Optional.
	Forget func([]nft.Mapping) error
}

// Ports maps and unmaps pods' host ports.
type Ports struct{ Options }

// New returns the host ports in the agent's table.
func New(o Options) *Ports {
	if o.Exposed == nil {
		o.Exposed = func([]nft.Mapping) {}
	}
	if o.Left == nil {
		o.Left = func() error { return nil }
	}
	if o.Forget == nil {
		o.Forget = func([]nft.Mapping) error { return nil }
	}
	return &Ports{o}
}

// Kind returns the kind of these host ports.
func (p *Ports) Kind() hold.Kind {
	return hold.Kind{
		Stage:   hold.Use,
		New:     func() hold.Spec { return new(Spec) },
		Acquire: p.acquire,
		Beside:  true, // beside the link, whose pod hears nothing before the link is up
		Verify:  p.verify,
		Release: p.release,
		Batch:   batch,
		Find:    p.find,
	}
}

// acquire maps the ports. TCP begins anew with each connection; but a client that has sent
// datagrams to one of the ports has a flow to the node itself, which would go on for as long as the
// client sends (containernetworking/plugins #123).
func (p *Ports) acquire(_ context.Context, h hold.Hold) error {
	s, ok := h.Spec.(*Spec)
	if !ok {
		return fmt.Errorf("a hold of kind %s has no host ports", h.Spec.Kind())
	}
	for _, m := range s.Mappings {
		if !nft.IsProtocol(m.Protocol) || !m.Host.IsValid() || !m.Pod.IsValid() || m.Host.Addr().Is4() != m.Pod.Addr().Is4() {
			return fmt.Errorf("%s: %s cannot be mapped", s, m)
		}
	}
	if err := p.Maps.Map(h.Owner, s.Mappings); err != nil {
		return err
	}
	datagrams := slices.DeleteFunc(slices.Clone(s.Mappings), func(m nft.Mapping) bool { return m.Protocol == "tcp" })
	if len(datagrams) > 0 {
		p.Exposed(datagrams)
	}
	return nil
}

func (p *Ports) verify(_ context.Context, _ *hold.Look, hs []hold.Hold) []error {
	errs := make([]error, len(hs))
	if len(hs) == 0 {
		return errs
	}
	mapped, seeing := p.Maps.Mapped()
	for i, h := range hs {
		s, ok := h.Spec.(*Spec)
		switch {
		case !ok:
			errs[i] = fmt.Errorf("a hold of kind %s has no host ports", h.Spec.Kind())
		case seeing != nil:
			errs[i] = fmt.Errorf("looking for %s: %w", s, seeing)
		default:
			errs[i] = compare(s, mapped[h.Owner])
		}
	}
	return errs
}

// compare compares the ports that an owner should have with those that the owner has.
func compare(s *Spec, have []nft.Mapping) error {
	if len(have) == 0 && len(s.Mappings) > 0 {
		return fmt.Errorf("%s: %w", s, hold.ErrGone)
	}
	var differences []string
	for _, m := range s.Mappings {
		if !slices.Contains(have, m) {
			differences = append(differences, "does not map "+m.String())
		}
	}
	for _, m := range have {
		if !slices.Contains(s.Mappings, m) {
			differences = append(differences, "maps "+m.String())
		}
	}
	if len(differences) > 0 {
		return &hold.ChangedError{What: s.String(), Differences: differences}
	}
	return nil
}

// release unmaps all ports that the holds' owners have, in one transaction, even ports that their specs
// do not name. If Left fails, only the releases of adopted owners fail: of other owners nothing is
// left.
func (p *Ports) release(_ context.Context, hs []hold.Hold) []error {
	errs := make([]error, len(hs))
	var owners []hold.ID
	var adopted []int // indices of their holds
	for i, h := range hs {
		s, ok := h.Spec.(*Spec)
		if !ok {
			errs[i] = fmt.Errorf("a hold of kind %s has no host ports", h.Spec.Kind())
			continue
		}
		owners = append(owners, h.Owner)
		if len(s.Mappings) == 0 {
			adopted = append(adopted, i)
		}
	}
	if len(owners) == 0 {
		return errs
	}
	err := p.forget(owners, hs)
	if err == nil {
		err = p.Maps.Unmap(owners)
	}
	if err != nil {
		for i := range errs {
			if errs[i] == nil {
				errs[i] = fmt.Errorf("releasing %s: %w", hs[i].Spec, err)
			}
		}
		return errs
	}
	if len(adopted) > 0 {
		err := p.Left()
		for _, i := range adopted {
			if err != nil {
				errs[i] = fmt.Errorf("releasing %s: %w", hs[i].Spec, err)
			}
		}
	}
	return errs
}

// forget closes the bound host ports of owners, and has the kernel forget their connections.
func (p *Ports) forget(owners []hold.ID, hs []hold.Hold) error {
	var bound []nft.Mapping
	for _, h := range hs {
		if s, ok := h.Spec.(*Spec); ok {
			bound = append(bound, slices.DeleteFunc(slices.Clone(s.Mappings), func(m nft.Mapping) bool { return m.Via == 0 })...)
		}
	}
	if len(bound) == 0 {
		return nil
	}
	if err := p.Maps.Close(owners); err != nil {
		return err
	}
	return p.Forget(bound)
}

// find returns the host ports in the table, by their owners.
func (p *Ports) find(context.Context, *hold.Look) ([]hold.Hold, error) {
	mapped, err := p.Mapped()
	if err != nil {
		return nil, fmt.Errorf("looking for host ports: %w", err)
	}
	var holds []hold.Hold
	for owner, spec := range mapped {
		holds = append(holds, hold.Hold{Owner: owner, Spec: spec})
	}
	slices.SortFunc(holds, func(a, b hold.Hold) int { return strings.Compare(string(a.Owner), string(b.Owner)) })
	return holds, nil
}

// Mapped returns the host ports in the table, by their owners.
func (p *Ports) Mapped() (map[hold.ID]*Spec, error) {
	mapped, err := p.Maps.Mapped()
	if err != nil {
		return nil, err
	}
	specs := make(map[hold.ID]*Spec, len(mapped))
	for owner, ms := range mapped {
		s := &Spec{Link: p.Link(owner), Mappings: ms}
		if !slices.ContainsFunc(ms, func(m nft.Mapping) bool { return m.Via == 0 }) {
			s.Link = "" // as the mode chained has it: the sweep compares what Find returns with the ledger's holds by their names
		}
		specs[owner] = s
	}
	return specs, nil
}
