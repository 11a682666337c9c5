package demo

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/berth-net/berth/api"
)

func (s *story) restart(ctx context.Context) error {
	begun := time.Now()
	if err := s.serve(ctx); err != nil {
		return err
	}
	list, err := s.agent.API.List(ctx, api.Filter{State: api.StateAttached})
	if err != nil {
		return err
	}
	if len(list) != podCount-leave {
		return fmt.Errorf("%d pods are attached after a start with %d queued deletions, but %d should be", len(list), s.queued, podCount-leave)
	}
	s.step("restart", "the agent serves again after %s, and carried out the %d queued deletions first", round(time.Since(begun)), s.queued)
	return nil
}

// detach detaches the pods that are still attached, and waits until the agent has released everything.
func (s *story) detach(ctx context.Context) error {
	rest := slices.DeleteFunc(slices.Clone(s.pods), func(p *pod) bool { return p.detached })
	took, err := each(rest, func(p *pod) (bool, error) {
		return true, s.network.detach(ctx, p)
	})
	s.took["DEL"] = append(s.took["DEL"], took...)
	if err != nil {
		return err
	}
	s.step("detach", "the other %d pods detached", len(rest))
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		left, err := s.agent.API.List(ctx, api.Filter{})
		if err != nil {
			return err
		}
		if len(left) == 0 {
			break
		}
		if time.Now().After(end) {
			return fmt.Errorf("the agent did not release all within %s: %d attachments are left", patience, len(left))
		}
	}
	s.step("release", "every link, route and record of theirs is given back")
	return nil
}

// audit asks the agent what is left over or missing, and then asks the kernel itself.
func (s *story) audit(ctx context.Context) error {
	audit, err := s.agent.API.Audit(ctx)
	if err != nil {
		return err
	}
	for _, f := range audit.Findings {
		s.residue = append(s.residue, fmt.Sprintf("audit: %s %s %s %s", f.Type, f.What, f.Owner, f.Detail))
	}
	s.step("audit", "the agent finds %d things left over or missing", len(audit.Findings))

	now, err := look()
	if err != nil {
		return err
	}
	found := changed(s.idle, now)
	for _, p := range s.pods {
		links, err := p.links()
		if err != nil {
			return err
		}
		for _, name := range links {
			found = append(found, fmt.Sprintf("link %s in %s", name, p.runtime.ContainerID))
		}
	}
	s.residue = append(s.residue, found...)
	s.step("look", "the kernel shows %d links, routes, neighbours, tables, conntrack entries too many or missing", len(found))
	return nil
}

// remove ends the agent and the pods, and compares the node with its state before the agent
// came.
func (s *story) remove(context.Context) error {
	if err := s.agent.Stop(); err != nil {
		return err
	}
	if code := s.agent.ExitCode(); code != 0 {
		return fmt.Errorf("stopping berthd: exit code %d", code)
	}
	if err := s.agent.Remove(); err != nil {
		return err
	}
	s.step("remove", "the agent is stopped, and its own routes and table given back by berthd --remove")
	now, err := look()
	if err != nil {
		return err
	}
	found := changed(s.bare, now)
	for _, p := range s.pods {
		if err := p.netns.Delete(); err != nil {
			return err
		}
	}
	kept, err := mounts(s.netnsDir())
	if err != nil {
		return err
	}
	found = append(found, kept...)
	s.residue = append(s.residue, found...)
	s.step("compare", "%d differences between the node and what it was before", len(found))
	return nil
}
