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

// poolsShort let the addresses that a rebuild does not know of come back soon.
const poolsShort = "pools:\n  - name: default\n    cidrs: [10.88.0.0/16]\ncooldown: 300ms\n"

// ledgerLost prepares a node without agent and ledger, with pods of which one
// has been deleted meanwhile.
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

// attachLater attaches a pod as soon as there are addresses: after a rebuild, all
// that are not in use rest.
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

// rebuiltAgain repeats it, unless it had come to its end, and detaches the pods of
// an agent that then has to start.
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

// begunAgain is begun, and a new measure of what follows.
func begunAgain(w *world) error {
	if err := begun(w); err != nil {
		return err
	}
	return w.settle()
}
