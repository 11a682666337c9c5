package main

import (
	"fmt"
	"os"

	"github.com/berth-net/berth/test/crash/killer"
)

// bare prepares a root that no agent has ever been started with.
func bare(w *world) error {
	if err := removed(w); err != nil {
		return err
	}
	if err := os.RemoveAll(w.root.Run()); err != nil {
		return err
	}
	return os.RemoveAll(w.root.State())
}

// removed stops the agent. Then `berthd --remove` has to leave nothing.
func removed(w *world) error {
	if err := w.stop(); err != nil {
		return err
	}
	if status, err := w.remove(nil); err != nil || status != 0 {
		return fmt.Errorf("berthd --remove ends with status %#x (%v)", status, err)
	}
	return w.removed()
}

// begun checks an agent of a new instance. The things of a new instance have other names than
// the things of the instance before, so begun cannot compare the two. begun checks the new things by
// the agent's audit and by the number of owners, and checks that `berthd --remove` removes them all.
func begun(w *world) error {
	if err := w.audit(); err != nil {
		return err
	}
	lost, err := w.strayFiles()
	if err != nil {
		return err
	}
	if lost != "" {
		return left("the oracle finds\n%s", lost)
	}
	if err := w.ledger(); err != nil {
		return err
	}
	if err := removed(w); err != nil {
		return err
	}
	return w.restart()
}

// removing is `berthd --remove` under the judge.
func removing(w *world, judge killer.Judge) error {
	status, err := w.remove(judge)
	if err == nil && status != 0 {
		err = fmt.Errorf("berthd --remove ends with status %#x", status)
	}
	return err
}

// removedAgain repeats `berthd --remove`, and starts the agent again. scenario.point has
// started the agent before, so that everything that was removed half-way is whole again.
// The agent takes its things anew with a new owner, and so with another comment in the table;
// therefore removedAgain settles the world again.
func removedAgain(w *world, _ error) error {
	if err := w.audit(); err != nil {
		return err
	}
	if err := removed(w); err != nil {
		return err
	}
	if err := w.restart(); err != nil {
		return err
	}
	return w.settle()
}
