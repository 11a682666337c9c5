package main

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berth-net/berth/test/crash/killer"
)

// onAgent runs f with the agent under the judge, and waits until all work that f caused is
// done.
func onAgent(f func(w *world) error) func(*world, killer.Judge) error {
	return func(w *world, judge killer.Judge) error {
		var answered atomic.Bool // from then on the agent answers only this program's own requests
		w.agent.Watch(func(c killer.Call) killer.Verdict {
			if answered.Load() {
				return unasked(judge)(c)
			}
			return judge(c)
		})
		err := f(w)
		answered.Store(true)
		for err == nil && !w.agent.Gone() {
			var leaving int
			if leaving, err = w.leaving(); leaving == 0 {
				break
			}
			time.Sleep(time.Millisecond)
		}
		w.agent.Watch(nil)
		if w.agent.Gone() {
			return errors.Join(err, errGone)
		}
		return err
	}
}

// unasked returns a judge that lets the agent's answers to this program's own requests
// pass.
func unasked(judge killer.Judge) killer.Judge {
	return func(c killer.Call) killer.Verdict {
		if c.String() == "write socket" {
			return killer.Verdict{}
		}
		return judge(c)
	}
}

// leaving counts the attachments that are on their way in or out.
func (w *world) leaving() (n int, err error) {
	all, err := w.list()
	for _, at := range all {
		if at.State != "attached" {
			n++
		}
	}
	return n, err
}

// onPlugin returns a function that runs a verb for pod 0, with the plugin under the judge.
func onPlugin(verb string) func(*world, killer.Judge) error {
	return func(w *world, judge killer.Judge) error { return w.pods[0].verb(verb, judge) }
}

// attached prepares n pods that are attached.
func attached(n int) func(*world) error {
	return func(w *world) error {
		return w.together(n, func(p *pod) error { return p.attach() })
	}
}

// together calls f for the first n pods at once.
func (w *world) together(n int, f func(*pod) error) error {
	if _, err := w.pod(n - 1); err != nil {
		return err
	}
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i, p := range w.pods[:n] {
		wg.Go(func() { errs[i] = f(p) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// blank prepares a pod with a new container.
func blank(w *world) error {
	p, err := w.pod(0)
	if err == nil {
		p.renew()
	}
	return err
}

// running prepares nothing: the agent runs already.
func running(*world) error { return nil }

// idle prepares an agent that has been stopped.
func idle(w *world) error { return w.stop() }

// started starts the agent under the judge.
func started(w *world, judge killer.Judge) error {
	if err := w.start(unasked(judge)); err != nil {
		return err
	}
	if err := w.spared(); err != nil && !w.agent.Gone() {
		return err
	}
	return onAgent(running)(w, judge)
}

// detachAll repeats DEL of all pods until it succeeds.
func detachAll(w *world, _ error) error {
	for _, p := range w.pods {
		if p.container == "" {
			continue
		}
		if err := p.detach(); err != nil {
			return err
		}
	}
	return nil
}

// addAgain repeats ADD. ADD and the CHECK after it have to succeed.
func addAgain(w *world, _ error) error {
	p := w.pods[0]
	if err := p.verb("ADD", nil); err != nil {
		return err
	}
	if err := p.verb("CHECK", nil); err != nil {
		return err
	}
	return p.detach()
}

// successor detaches the pod, attaches another container in it, and then repeats the old
// container's DEL, which has to spare the new one.
func successor(w *world, _ error) error {
	p := w.pods[0]
	old := *p
	if err := p.detach(); err != nil {
		return err
	}
	p.renew()
	if err := p.verb("ADD", nil); err != nil {
		return err
	}
	if err := old.detach(); err != nil { // late
		return err
	}
	if err := p.verb("CHECK", nil); err != nil {
		return fmt.Errorf("after a late DEL of its predecessor: %w", err)
	}
	return p.detach()
}

// collect executes GC with only pod 0 valid.
func collect(w *world, judge killer.Judge) error {
	keys := fmt.Sprintf(`"cni.dev/valid-attachments":[{"containerID":%q,"ifname":"eth0"}]`, w.pods[0].container)
	for _, p := range w.pods[1:] {
		p.leaves()
	}
	all := []string{keys}
	if w.others != nil {
		all = append(all, w.delegates()...)
	}
	c, f, err := w.plugin("GC", nil, all...)
	if err != nil {
		return err
	}
	_, err = run(c, f, judge)
	return err
}

// collectAgain repeats GC, which has to leave nothing but pod 0.
func collectAgain(w *world, _ error) error {
	if err := collect(w, nil); err != nil {
		return err
	}
	if err := w.pods[0].verb("CHECK", nil); err != nil {
		return err
	}
	if err := w.pods[0].detach(); err != nil {
		return err
	}
	return w.released()
}

// stopped sends SIGTERM to the agent while a pod is being released.
func stopped(w *world, judge killer.Judge) error {
	if err := w.pods[0].verb("DEL", nil); err != nil {
		return err
	}
	w.agent.Watch(judge)
	return w.stop()
}
