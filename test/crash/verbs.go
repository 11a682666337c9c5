package main

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berth-net/berth/test/crash/killer"
)

// onAgent runs f with the agent under the judge, and waits until all is over
// that f brings about.
func onAgent(f func(w *world) error) func(*world, killer.Judge) error {
	return func(w *world, judge killer.Judge) error {
		var answered atomic.Bool // from then on the agent answers nobody but this program
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

// unasked leaves out the answers to what this program itself asks an agent.
func unasked(judge killer.Judge) killer.Judge {
	return func(c killer.Call) killer.Verdict {
		if c.String() == "write socket" {
			return killer.Verdict{}
		}
		return judge(c)
	}
}

// leaving counts the attachments that are neither attached nor gone.
func (w *world) leaving() (n int, err error) {
	all, err := w.list()
	for _, at := range all {
		if at.State != "attached" {
			n++
		}
	}
	return n, err
}

// onPlugin runs a verb of pod 0 with the plugin under the judge.
func onPlugin(verb string) func(*world, killer.Judge) error {
	return func(w *world, judge killer.Judge) error { return w.pods[0].verb(verb, judge) }
}

// attached prepares pods that are attached.
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

// running prepares nothing but an agent that runs.
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

// detachAll is DEL of all pods until it succeeds.
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

// addAgain repeats ADD, which has to succeed, and be found whole by CHECK.
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

// successor repeats DEL only after another container has been attached in the
// pod, which has to be spared.
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

// collect is GC with only pod 0 valid.
func collect(w *world, judge killer.Judge) error {
	keys := fmt.Sprintf(`"cni.dev/valid-attachments":[{"containerID":%q,"ifname":"eth0"}]`, w.pods[0].container)
	for _, p := range w.pods[1:] {
		p.leaves()
	}
	c, f, err := w.plugin("GC", nil, keys)
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
	deleting, requests := false, 0
	w.agent.Watch(func(c killer.Call) killer.Verdict {
		mu.Lock()
		defer mu.Unlock()
		if c.Netlink && !c.Answer && !deleting {
			if requests++; requests == 2 {
				once.Do(func() { close(held) })
				return killer.Verdict{Do: killer.Hold}
			}
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
	_ = w.pods[2].verb("DEL", nil) // fails, or is queued once the agent is gone
	if _, err := w.agent.Wait(patience); err != nil {
		return fmt.Errorf("an agent that was to be killed by DEL: %w", err)
	}
	if <-done == nil {
		return errors.New("an ADD that was held succeeded")
	}
	return nil
}

// kept checks pod 0, which must have survived, and detaches all.
func kept(w *world, _ error) error {
	if err := w.pods[0].verb("CHECK", nil); err != nil {
		return err
	}
	return detachAll(w, nil)
}

// reboot prepares a node that was rebooted with pods half-way.
func reboot(w *world) error {
	if err := halfWay(w); err != nil {
		return err
	}
	for _, p := range w.pods {
		if err := p.delete(); err != nil {
			return err
		}
	}
	if err := deleteNetns(w.node); err != nil {
		return err
	}
	if err := removeAll(w.root.Run()); err != nil {
		return err
	}
	if err := w.newNode(); err != nil {
		return err
	}
	for _, p := range w.pods {
		if err := p.make(); err != nil {
			return err
		}
		p.leaves() // with the boot
	}
	return nil
}

// stopped is SIGTERM while a pod is on its way out.
func stopped(w *world, judge killer.Judge) error {
	if err := w.pods[0].verb("DEL", nil); err != nil {
		return err
	}
	w.agent.Watch(judge)
	return w.stop()
}

// orphaned prepares attached pods whose agent is away.
func orphaned(n int) func(*world) error {
	return func(w *world) error {
		if err := attached(n)(w); err != nil {
			return err
		}
		return w.agent.Kill()
	}
}

// startAndDetach starts the agent and repeats DEL.
func startAndDetach(w *world, verb error) error {
	if err := w.restart(); err != nil {
		return err
	}
	return detachAll(w, verb)
}

// detachAndStart repeats DEL while the agent is away, and lets it do the rest.
func detachAndStart(w *world, verb error) error {
	if err := detachAll(w, verb); err != nil {
		return err
	}
	return w.restart()
}

// onlyStart starts the agent, who has to do the rest if DEL has succeeded.
func onlyStart(w *world, verb error) error {
	if verb != nil {
		return detachAndStart(w, verb)
	}
	return w.restart()
}

// queued prepares deletions that wait for an agent: that of pod 1 with a result,
// and those of pod 2 and 3 without one, so that nobody has cut them off. Pod 3 has
// two of them.
func queued(w *world) error {
	if err := orphaned(4)(w); err != nil {
		return err
	}
	w.pods[2].result, w.pods[3].result = nil, nil
	for _, i := range []int{1, 2, 3, 3} {
		if err := w.pods[i].verb("DEL", nil); err != nil {
			return err
		}
	}
	return nil
}

// drained waits until nothing is left but pod 0, without any further DEL.
func drained(w *world, _ error) error {
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		all, err := w.list()
		if err != nil {
			return err
		}
		if len(all) == 1 && all[0].ContainerID == w.pods[0].container {
			break
		}
		if time.Now().After(end) {
			return left("deletions that were queued are not done: %+v", all)
		}
	}
	if err := w.pods[0].verb("CHECK", nil); err != nil {
		return err
	}
	return w.pods[0].detach()
}
