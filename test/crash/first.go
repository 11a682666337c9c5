package main

import (
	"fmt"
	"os"

	"github.com/berth-net/berth/test/crash/killer"
)

func removeAll(dir string) error { return os.RemoveAll(dir) }

// bare prepares a root that no agent has ever been started with.
func bare(w *world) error {
	if err := w.stop(); err != nil {
		return err
	}
	if err := removed(w); err != nil {
		return err
	}
	if err := removeAll(w.root.Run()); err != nil {
		return err
	}
	return removeAll(w.root.State())
}

// removed is `berthd --remove`, which has to leave nothing.
func removed(w *world) error {
	if status, err := w.remove(nil); err != nil || status != 0 {
		return fmt.Errorf("berthd --remove ends with status %#x (%v)", status, err)
	}
	return w.removed()
}

// begun checks an agent of a new instance: what it holds is called otherwise than
// what that of before held, so that it is counted, and then taken away.
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
	if err := w.stop(); err != nil {
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

// removedAgain repeats it, and starts the agent again. The point's loop has
// started it already: what was removed half-way is whole by then. What it takes
// anew has a new owner, and so another comment in the table.
func removedAgain(w *world, _ error) error {
	if err := w.audit(); err != nil {
		return err
	}
	if err := w.stop(); err != nil {
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
