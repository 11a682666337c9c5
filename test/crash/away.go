package main

import "time"

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
