package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/nettest"
)

// look starts the agent, and compares what the agent has with what a runtime knows.
func (l *churn) look() error {
	w := l.w
	if err := w.restart(); err != nil {
		return err
	}
	defer func() { l.found(w.agent.Kill()) }()
	if err := w.spared(); err != nil {
		return err
	}
	if err := w.calm(); err != nil {
		return err
	}
	all, err := w.list()
	if err != nil {
		return err
	}
	want := map[string]bool{}
	for _, s := range l.slots {
		if s.attached {
			want[s.container] = true
		}
	}
	for _, at := range all {
		if !want[at.ContainerID] {
			return left("%s is attached, and nobody knows it: %+v", at.ContainerID, at)
		}
		delete(want, at.ContainerID)
	}
	if len(want) > 0 {
		return left("these were attached and are not: %v", want)
	}
	if err := errors.Join(w.audit(), w.told()); err != nil {
		return err
	}
	w.noteThere(all)
	for _, s := range l.slots {
		if s.attached {
			if err := s.pod.verb("CHECK", nil); err != nil {
				return left("%v", err)
			}
		}
	}
	return w.onlyLinks(all)
}

// onlyLinks compares the node with its state without pods. The only difference may be one link
// for each pod, with its addresses and routes, and the pod's host ports. All lines about these name
// the attachment.
func (w *world) onlyLinks(all []api.Attachment) error {
	now, err := nettest.Look(w.node)
	if err != nil {
		return err
	}
	diff := strings.Split(w.base.Diff(now), "\n")
	diff = slices.DeleteFunc(diff, func(line string) bool {
		return line == "" || slices.ContainsFunc(all, func(at api.Attachment) bool { return strings.Contains(line, at.ID) })
	})
	if len(diff) > 0 {
		return left("the oracle finds beside %d pods\n%s", len(all), strings.Join(diff, "\n"))
	}
	return nil
}

// calm waits until no pod is being attached or detached.
func (w *world) calm() error {
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		n, err := w.leaving()
		if err != nil || n == 0 {
			return err
		}
		if time.Now().After(end) {
			all, _ := w.list()
			return left("after %v there are still %d on their way: %+v", patience, n, all)
		}
	}
}

// audit fails if the agent's audit finds anything. The agent may owe something for a while: an injected
// failure can hit work that the agent tries again by itself, without a pod on its way.
func (w *world) audit() error {
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		a, err := w.api.Audit(context.Background())
		switch {
		case err != nil || len(a.Findings) == 0:
			return err
		case slices.ContainsFunc(a.Findings, func(f api.Finding) bool { return f.Type != api.FindingOwed }), time.Now().After(end):
			return left("berth audit finds %+v", a.Findings)
		}
	}
}
