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

// detachAndStart repeats DEL while the agent is away, and then starts the agent, which does
// the rest.
func detachAndStart(w *world, verb error) error {
	if err := detachAll(w, verb); err != nil {
		return err
	}
	return w.restart()
}

// onlyStart starts the agent without another DEL, if DEL has succeeded: the agent has to do
// the rest.
func onlyStart(w *world, verb error) error {
	if verb != nil {
		return detachAndStart(w, verb)
	}
	return w.restart()
}

// queued prepares deletions that wait for an agent: one of pod 1 with a result, and one of
// pod 2 and two of pod 3 without a result.
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

// drained waits, without any further DEL, until only pod 0 is left.
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
