package agent

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
)

// List returns the attachments that a filter matches, the oldest first.
func (a *Agent) List(f api.Filter) []api.Attachment {
	var list []api.Attachment
	for _, e := range a.matching(f) {
		if at := a.show(e); f.State == "" || f.State == at.State {
			list = append(list, at)
		}
	}
	slices.SortFunc(list, func(x, y api.Attachment) int {
		if c := x.Created.Compare(y.Created); c != 0 {
			return c
		}
		return strings.Compare(x.ID, y.ID)
	})
	return list
}

// Get returns one incarnation.
func (a *Agent) Get(id hold.ID) (api.Attachment, bool) {
	e := a.index.get(id)
	if e == nil {
		return api.Attachment{}, false
	}
	return a.show(e), true
}

// matching returns the attachments that a filter matches, but for its State.
func (a *Agent) matching(f api.Filter) []*entry {
	candidates := a.index.all
	if f.Container != "" {
		candidates = func() []*entry { return a.index.container(f.Container) }
	}
	return slices.DeleteFunc(candidates(), func(e *entry) bool { return !matches(e, f) })
}

func matches(e *entry, f api.Filter) bool {
	r := e.record
	var pod api.Pod
	if r.Pod != nil {
		pod = *r.Pod
	}
	for _, c := range []struct{ want, have string }{
		{f.Network, r.Network},
		{f.Container, r.ContainerID},
		{f.Ifname, r.Ifname},
		{f.Namespace, pod.Namespace},
		{f.Pod, pod.Name},
		{f.UID, pod.UID},
	} {
		if c.want != "" && c.want != c.have {
			return false
		}
	}
	if f.Link == "" && f.Address == "" {
		return true
	}
	spec, err := attachment.Link(e.owner)
	if err != nil {
		return false
	}
	if f.Link != "" && f.Link != spec.Name {
		return false
	}
	return f.Address == "" || slices.ContainsFunc(spec.Addresses, func(ip netip.Addr) bool { return ip.String() == f.Address })
}

// state says how far an attachment is.
func (a *Agent) state(e *entry, owed []engine.Owed) string {
	switch {
	case len(owed) > 0:
		return api.StateOwed
	case !e.owner.Wanted():
		return api.StateReleasing
	case a.engine.Taking(e.owner.ID):
		return api.StateAttaching
	}
	return api.StateAttached
}

func (a *Agent) show(e *entry) api.Attachment {
	owed := a.engine.Owed(e.owner.ID)
	at := describe(e)
	at.State = a.state(e, owed)
	for _, o := range owed {
		at.Owed = append(at.Owed, owedView(o))
	}
	return at
}

// describe is what the record alone says.
func describe(e *entry) api.Attachment {
	r := e.record
	at := api.Attachment{
		ID:          string(e.owner.ID),
		Network:     r.Network,
		ContainerID: r.ContainerID,
		Ifname:      r.Ifname,
		Netns:       r.Netns.Path,
		Pod:         r.Pod,
		Pool:        r.Pool,
		Mode:        r.Mode,
		Addresses:   []string{},
		Created:     r.Created,
	}
	if !e.owner.Wanted() {
		at.Releasing = &e.owner.Releasing
	}
	if spec, err := attachment.Link(e.owner); err == nil {
		at.MAC, at.MTU, at.HostVeth = spec.MAC, spec.MTU, spec.Name
		for _, ip := range spec.Addresses {
			at.Addresses = append(at.Addresses, ip.String())
		}
	}
	return at
}
