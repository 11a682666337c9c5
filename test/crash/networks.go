package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/test/crash/killer"
)

// others is what a world has beside the agent if each pod has two networks: one that berth-runner has ptp and host-local make, and
// one of Berth's own.
type others struct {
	peers  string // folder of the reference plugins
	traced bool   // whether berth-runner is the program that is killed
	runner *killer.Process
}

// with gives the world's pods two networks, and starts berth-runner.
func (w *world) with(peers string, traced bool) error {
	w.others = &others{peers: peers, traced: traced}
	return w.startRunner()
}

// reservations is the folder in which host-local keeps who has which address.
func (w *world) reservations() string { return filepath.Join(string(w.root), "var/lib/cni/networks") }

// delegates are the keys of a configuration that gives a pod two networks.
func (w *world) delegates() []string {
	return []string{
		fmt.Sprintf(`"binDir":%q`, w.others.peers),
		fmt.Sprintf(`"delegates":[{"cniVersion":"1.0.0","name":"one","type":"ptp","ipam":{"type":"host-local","subnet":"10.1.0.0/16","dataDir":%q}},`+
			`{"cniVersion":"1.1.0","name":"own","type":"berth-cni"}]`, w.reservations()),
	}
}

// startRunner starts berth-runner on the node, and waits until it listens.
func (w *world) startRunner() error {
	c := killer.Command{
		Netns: w.node.Ref().Path, Path: filepath.Join(w.bin, "berth-runner"),
		Args: []string{"--root", string(w.root), "--bin-dir", w.others.peers}, Stderr: w.log,
	}
	start := killer.StartFree
	if w.others.traced {
		start = func(c killer.Command) (*killer.Process, error) { return killer.Start(c, nil) }
	}
	p, err := start(c)
	if err != nil {
		return err
	}
	w.others.runner = p
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if p.Gone() {
			return fmt.Errorf("berth-runner ends at its start\n%s", w.lastWords())
		}
		if c, err := net.Dial("unix", w.root.RunnerSocket()); err == nil {
			return c.Close()
		}
	}
	return errors.New("berth-runner does not listen")
}

// stopRunner kills berth-runner, if the world has one.
func (w *world) stopRunner() error {
	if w.others == nil || w.others.runner == nil {
		return nil
	}
	return w.others.runner.Kill()
}

// onRunner runs f with berth-runner and its plugins under the judge, and waits until all work that f caused is done. A berth-runner
// that is killed is started again at once, as its supervisor does.
func onRunner(f func(w *world) error) func(*world, killer.Judge) error {
	return func(w *world, judge killer.Judge) error {
		var killed atomic.Bool
		first := w.others.runner
		first.Watch(func(c killer.Call) killer.Verdict {
			v := judge(c)
			if v.Do == killer.KillBefore || v.Do == killer.KillAfter {
				killed.Store(true)
			}
			return v
		})
		done := make(chan error, 1)
		go func() {
			err := f(w)
			for n := 1; err == nil && n > 0 && !killed.Load(); time.Sleep(time.Millisecond) {
				n, err = w.leaving()
			}
			done <- err
		}()
		err, ended := error(nil), false
		for !ended || killed.Load() && first == w.others.runner {
			if first == w.others.runner && first.Gone() {
				if err := w.startRunner(); err != nil {
					return err
				}
			}
			select {
			case err = <-done:
				ended = true
			case <-time.After(time.Millisecond):
			}
		}
		w.others.runner.Watch(nil)
		return err
	}
}

// hostLocal says that a line of the oracle is about what host-local keeps for good.
func hostLocal(line string) bool {
	return strings.Contains(line, " var/lib/cni ") || strings.Contains(line, " var/lib/cni/networks ") || strings.Contains(line, " var/lib/cni/networks/one ") ||
		strings.Contains(line, "/one/lock ") || strings.Contains(line, "/one/last_reserved_ip.0 ")
}

// removeUnowned removes reservations that say nothing. host-local makes the file of an address and then writes into it who has it; if it
// is killed in between, its DEL does not find the address.
func (w *world) removeUnowned() error {
	entries, err := os.ReadDir(filepath.Join(w.reservations(), "one"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		info, e2 := e.Info()
		if e2 == nil && strings.HasPrefix(e.Name(), "10.") && info.Size() == 0 {
			e2 = os.Remove(filepath.Join(w.reservations(), "one", e.Name()))
		}
		err = errors.Join(err, e2)
	}
	return err
}

// strayProcesses waits until no plugin runs on the node any more, nor what a plugin has started.
func (w *world) strayProcesses() error {
	for end := time.Now().Add(trickle); ; time.Sleep(5 * time.Millisecond) {
		all, err := filepath.Glob("/proc/[0-9]*/ns/net")
		if err != nil {
			return err
		}
		var stray []string
		for _, path := range all {
			var at unix.Stat_t
			if err := unix.Stat(path, &at); err != nil || at.Ino != w.node.Ref().Ino {
				continue
			}
			process := strings.TrimSuffix(path, "ns/net")
			env, _ := os.ReadFile(process + "environ") // it may have ended
			if line, _ := os.ReadFile(process + "cmdline"); strings.Contains(string(env), "CNI_COMMAND=") {
				stray = append(stray, strings.ReplaceAll(string(line), "\x00", " "))
			}
		}
		if len(stray) == 0 {
			return nil
		}
		if time.Now().After(end) {
			return left("these plugins still run on the node: %q", stray)
		}
	}
}

// networks are the scenarios of pods with two networks.
func networks() []scenario {
	add, del, gc := verbOf("ADD"), verbOf("DEL"), func(w *world) error { return collect(w, nil) }
	all := []scenario{
		{name: "berthd delegates ADD", agent: true, prepare: blank, verb: onAgent(add), remedies: []remedy{thenDel, thenAdd}},
		{name: "berthd delegates DEL", agent: true, prepare: attached(1), verb: onAgent(del), remedies: []remedy{thenDel, thenOther}},
		{name: "berthd delegates GC", agent: true, prepare: attached(3), verb: onAgent(gc), remedies: []remedy{thenGC}},
		{name: "berthd delegates reboot", agent: true, prepare: reboot, verb: started, remedies: []remedy{thenDel}},
		{name: "berth-runner ADD", prepare: blank, verb: onRunner(add), remedies: []remedy{thenDel, thenAdd}},
		{name: "berth-runner DEL", prepare: attached(1), verb: onRunner(del), remedies: []remedy{thenDel, thenOther}},
		{name: "berth-runner GC", prepare: attached(3), verb: onRunner(gc), remedies: []remedy{thenGC}},
	}
	for i := range all {
		all[i].networks = true
	}
	return all
}
