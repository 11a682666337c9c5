package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/test/crash/killer"
)

// poolsShort has a short cooldown, so that the addresses that rest after a rebuild are free
// again soon.
const poolsShort = "pools:\n  - name: default\n    cidrs: [10.88.0.0/16]\ncooldown: 300ms\n"

// ledgerLost prepares a node with attached pods, and without agent and ledger. One of the
// pods has been deleted while the agent was away.
func ledgerLost(w *world) error {
	if _, err := w.pod(2); err != nil {
		return err
	}
	for _, p := range w.pods {
		if err := p.attachLater(); err != nil {
			return err
		}
	}
	if err := w.agent.Kill(); err != nil {
		return err
	}
	if err := w.pods[2].verb("DEL", nil); err != nil {
		return err
	}
	return os.Remove(w.root.Ledger())
}

// attachLater attaches a pod as soon as there are free addresses: after a rebuild, all
// addresses that are not in use rest.
func (p *pod) attachLater() error {
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		err := p.attach()
		var e *api.Error
		if !errors.As(err, &e) || time.Now().After(end) {
			return err
		}
	}
}

// rebuilding is `berthd --rebuild-ledger` under the judge.
func rebuilding(w *world, judge killer.Judge) error {
	status, err := w.rebuild(judge)
	if err == nil && status != 0 {
		err = fmt.Errorf("berthd --rebuild-ledger ends with status %#x", status)
	}
	return err
}

func (w *world) rebuild(judge killer.Judge) (unix.WaitStatus, error) {
	p, err := killer.Start(w.berthd("--rebuild-ledger"), judge)
	if err != nil {
		return 0, err
	}
	return p.Wait(patience)
}

// rebuiltAgain repeats the rebuild if it did not succeed. Then it starts the agent, which
// has to work, and detaches the pods.
func rebuiltAgain(w *world, verb error) error {
	if verb != nil {
		if _, err := os.Stat(w.root.Ledger()); errors.Is(err, os.ErrNotExist) {
			if err := rebuilding(w, nil); err != nil {
				return err
			}
		} else if _, err := w.rebuild(nil); err != nil {
			return err
		}
	}
	if err := startAndDetach(w, verb); err != nil {
		return err
	}
	return w.released()
}

// begunAgain is begun, and then settles the world again.
func begunAgain(w *world) error {
	if err := begun(w); err != nil {
		return err
	}
	return w.settle()
}
