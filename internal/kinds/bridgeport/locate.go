package bridgeport

import (
	"errors"
	"fmt"

	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/nlsock"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/stamp"
)

// locate finds the port of a spec, even if somebody has renamed it: a renamed port still carries its pod's frames. It tries the port's name, its second
// name, which a rename leaves, the index at which this agent has seen the port, and, once in the agent's life, the list of
// all links. From then on the agent knows the index of each port. If nothing leads to the port the error is kernel.ErrNotFound.
func (p *Ports) locate(s *Spec) (rtnl.Link, error) {
	var l rtnl.Link
	for _, r := range []rtnl.Request{rtnl.GetLink(s.Name, &l), rtnl.GetAltLink(stamp.AltName(s.Name), &l)} {
		if found, err := p.ask(s, r, &l); found || err != nil {
			return l, err
		}
	}
	index, known := p.index(s.Name)
	if !known {
		if err := p.listOnce(s); err != nil {
			return l, err
		}
		index, known = p.index(s.Name)
	}
	if known {
		if found, err := p.ask(s, rtnl.GetLinkAt(index, &l), &l); found || err != nil {
			return l, err
		}
	}
	return rtnl.Link{}, kernel.As(kernel.ErrNotFound, fmt.Errorf("no link of the node is port %s, under any name", s.Name))
}

// ask sends a request that reads into l, and reports whether l is the port of a spec. No link at all is no error.
func (p *Ports) ask(s *Spec, r rtnl.Request, l *rtnl.Link) (bool, error) {
	err := p.Conn.Do(r)
	switch {
	case err == nil && s.owns(*l):
		p.see(s.Name, l.Index)
		return true, nil
	case err == nil, errors.Is(err, kernel.ErrNotFound), errors.Is(err, kernel.ErrInvalid), errors.Is(err, nlsock.ErrLong):
		return false, nil // ErrInvalid: a kernel without second names. ErrLong: somebody else's link, which says more than anybody reads
	}
	return false, err
}

// listOnce lists all links, unless this Ports has done so before.
func (p *Ports) listOnce(s *Spec) error {
	p.mu.Lock()
	listed := p.listed
	p.mu.Unlock()
	if listed {
		return nil
	}
	if _, err := p.list(false); err != nil {
		return fmt.Errorf("looking for %s among all links: %w", s.Name, err)
	}
	return nil
}
