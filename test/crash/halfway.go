package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/berth-net/berth/test/crash/killer"
)

// halfWay prepares an agent that was killed while pod 0 was attached, pod 1 half
// attached and pod 2 half detached.
func halfWay(w *world) error {
	if _, err := w.pod(2); err != nil {
		return err
	}
	for _, i := range []int{0, 2} {
		if err := w.pods[i].attach(); err != nil {
			return err
		}
	}
	held, once := make(chan struct{}), sync.Once{}
	var mu sync.Mutex
	deleting := false
	w.agent.Watch(func(c killer.Call) killer.Verdict {
		mu.Lock()
		defer mu.Unlock()
		// The ADD has made its link, and sets it up. Nothing else that the agent does here sends
		// this request, whatever it reads and mends meanwhile.
		if c.What == "RTM_SETLINK" && !deleting {
			once.Do(func() { close(held) })
			return killer.Verdict{Do: killer.Hold}
		}
		if deleting && strings.HasPrefix(c.String(), "fdatasync ledger") {
			return killer.Verdict{Do: killer.KillAfter}
		}
		return killer.Verdict{}
	})
	w.pods[1].renew()
	done := make(chan error, 1)
	go func() { done <- w.pods[1].verb("ADD", nil) }()
	select {
	case <-held:
	case err := <-done:
		return fmt.Errorf("an ADD that was to be held ended: %w", err)
	}
	mu.Lock()
	deleting = true
	mu.Unlock()
	_ = w.pods[2].verb("DEL", nil) // the DEL fails, or is queued once the agent is gone
	if _, err := w.agent.Wait(patience); err != nil {
		return fmt.Errorf("an agent that was to be killed by DEL: %w", err)
	}
	if <-done == nil {
		return errors.New("an ADD that was held succeeded")
	}
	return nil
}

// kept checks pod 0, which must have survived, and detaches all pods.
func kept(w *world, _ error) error {
	if err := w.pods[0].verb("CHECK", nil); err != nil {
		return err
	}
	return detachAll(w, nil)
}

// reboot prepares a node that was rebooted while pods were attached and detached half-way.
func reboot(w *world) error {
	if err := halfWay(w); err != nil {
		return err
	}
	for _, p := range w.pods {
		if err := p.delete(); err != nil {
			return err
		}
	}
	if err := w.stopRunner(); err != nil {
		return err
	}
	if err := w.removeLocks(); err != nil { // a reboot empties /run
		return err
	}
	if err := w.node.Delete(); err != nil {
		return err
	}
	if err := os.RemoveAll(w.root.Run()); err != nil {
		return err
	}
	if err := w.newNode(); err != nil {
		return err
	}
	if w.others != nil {
		if err := w.startRunner(); err != nil {
			return err
		}
	}
	for _, p := range w.pods {
		if err := p.make(); err != nil {
			return err
		}
		p.leaves() // the boot's end has ended the pod's attachment
	}
	return nil
}
