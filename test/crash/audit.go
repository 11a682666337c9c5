package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/conform/oracle"
	"github.com/berth-net/berth/internal/nettest"
)

// residue is something that was left behind, or lost.
type residue struct{ what string }

func (r *residue) Error() string { return r.what }

func left(format string, args ...any) error { return &residue{fmt.Sprintf(format, args...)} }

// notePresent notes the addresses of all attachments, also of those whose ADD was not answered:
// these addresses are in use now, and have to rest when they are freed. Addresses of an ADD that fails
// before its link is up need no rest, and nobody can tell afterwards whether that link was up. So the
// addresses of an ADD under way count once the ADD's link is up, and the addresses of a release count
// if the link is there and marked: an ADD that failed earlier has deleted its link before the agent
// promises the release.
func (w *world) notePresent() error {
	all, err := w.list()
	if err != nil {
		return err
	}
	w.noteThere(all)
	up, marked, err := w.links()
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, at := range all {
		for _, text := range at.Addresses {
			addr, err := netip.ParseAddr(text)
			if err != nil {
				return err
			}
			switch {
			case at.HostVeth == "": // another plugin's network, whose addresses do not rest
				continue
			case at.Releasing != nil && !marked[at.HostVeth]:
				continue
			case at.State == api.StateAttaching && !up[at.HostVeth]:
				continue
			case at.Releasing == nil:
				w.holds[addr] = at.ContainerID
			}
			w.seen[addr] = time.Now()
		}
	}
	return nil
}

// nothingLeft waits until the agent has released everything, and then looks for residue: by
// the agent's own audit, by the oracle, in the ledger and among the agent's files.
func (w *world) nothingLeft() error {
	if err := w.clean(); err != nil {
		return err
	}
	return w.ledger()
}

// clean is nothingLeft without a look into the ledger. It uses the agent's audit, its history,
// and the oracle, which knows nothing of Berth.
func (w *world) clean() error {
	if err := w.released(); err != nil {
		return err
	}
	if err := w.audit(); err != nil {
		return err
	}
	if err := w.told(); err != nil {
		return err
	}
	if w.others != nil {
		if err := errors.Join(w.removeUnowned(), w.strayProcesses()); err != nil {
			return err
		}
	}
	return w.oracle()
}

// released waits until no attachment is left.
func (w *world) released() error {
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		all, err := w.list()
		if err != nil {
			return err
		}
		if len(all) == 0 {
			return nil
		}
		if time.Now().After(end) {
			return left("%d attachments are not released after %v, the first is %+v", len(all), patience, all[0])
		}
	}
}

// trickle is how long the kernel may take for work that it does by itself after the
// deletion of a link.
const trickle = 2 * time.Second

// oracle compares the node, the pods and the files with their state when nothing was
// attached.
func (w *world) oracle() error {
	diff, err := w.differs(w.base, insideMost)
	for end := time.Now().Add(trickle); err == nil && diff != "" && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		diff, err = w.differs(w.base, insideMost)
	}
	if err != nil {
		return err
	}
	lost, err := w.strayFiles()
	if diff += lost; err == nil && diff != "" {
		err = left("the oracle finds\n%s", diff)
	}
	return err
}

// strayFiles compares the files below root with what they should be. A killed writer may
// leave a temporary file in the deletion queue, which the agent removes when the file is an
// hour old (internal/deletions). So strayFiles allows one temporary file for each death.
func (w *world) strayFiles() (diff string, err error) {
	if err := w.spared(); err != nil {
		return "", err
	}
	for end := time.Now().Add(trickle); ; time.Sleep(5 * time.Millisecond) {
		// If a file replaces another one while they are listed, the list may lack both.
		if diff, err = w.filesDiffer(); err != nil || diff == "" || time.Now().After(end) {
			return diff, err
		}
	}
}

func (w *world) filesDiffer() (string, error) {
	files, err := oracle.Files(string(w.root))
	if err != nil {
		return "", err
	}
	var diff strings.Builder
	temporary := int64(0)
	for line := range strings.Lines(w.files.Diff(files)) {
		if strings.Contains(line, "var/lib/berth/history") { // the history has to tell of what is gone
			continue
		}
		if hostLocal(line) {
			continue
		}
		if strings.Contains(line, " run/berth/missed ") { // there until a pass over connection tracking has succeeded
			continue
		}
		if strings.Contains(line, "/deletions/tmp-") {
			temporary++
			continue
		}
		diff.WriteString(line)
	}
	if n := w.deaths.Load(); temporary > n {
		fmt.Fprintf(&diff, "%d temporary files after %d deaths\n", temporary, n)
	}
	return diff.String(), nil
}

// insideMost is how many pods the oracle looks into after each point; at the end it looks into
// all pods. No link can be left in a pod alone: the oracle would see the link's other end on the node.
const insideMost = 3

// differs compares the node with what it should be, and a number of pods (most) at most with their
// state when they were made.
func (w *world) differs(node nettest.State, most int) (string, error) {
	now, err := nettest.Look(w.node)
	if err != nil {
		return "", err
	}
	diff := node.Diff(now)
	for _, p := range w.pods[:min(most, len(w.pods))] {
		now, err := nettest.Look(p.netns)
		if err != nil {
			return "", err
		}
		if d := p.empty.Diff(now); d != "" {
			diff += fmt.Sprintf("in pod %d:\n%s", p.number, d)
		}
	}
	return diff, nil
}

// ledger looks for owners that should not be there, and for addresses that have been in use
// and do not rest.
func (w *world) ledger() error {
	l, err := w.api.Ledger(context.Background())
	if err != nil {
		return err
	}
	if len(l.Owners) != w.own {
		return left("the ledger has %d owners and the agent %d: %s", len(l.Owners), w.own, l.Owners)
	}
	resting := map[string]bool{}
	for _, r := range l.Resting {
		resting[r.Name] = true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for addr, last := range w.seen {
		if _, held := w.holds[addr]; !held && time.Since(last) < w.cooldown/2 && !resting[addr.String()] {
			return left("%s has been in use, and does not rest; these do: %v", addr, l.Resting)
		}
	}
	return nil
}

// links returns which of the node's links are up, and which have an alias, by their names. ADD
// gives a link its alias before it sets the link up.
func (w *world) links() (up, marked map[string]bool, err error) {
	up, marked = map[string]bool{}, map[string]bool{}
	err = w.node.Do(func() error {
		all, err := oracle.List(netlink.LinkList)
		for _, l := range all {
			at := l.Attrs()
			up[at.Name], marked[at.Name] = at.Flags&net.FlagUp != 0, at.Alias != ""
		}
		return err
	})
	return up, marked, err
}

// removed compares the node, after `berthd --remove`, with its state before there was an
// agent.
func (w *world) removed() error {
	diff, err := w.differs(w.virgin, len(w.pods))
	if err != nil {
		return err
	}
	// Forwarding stays on once an agent has turned it on, and accept_ra follows forwarding.
	lines := slices.DeleteFunc(strings.Split(diff, "\n"), func(line string) bool {
		return line == "" || strings.HasPrefix(line[1:], "sysctl ")
	})
	if len(lines) > 0 {
		return left("after berthd --remove the oracle finds\n%s", strings.Join(lines, "\n"))
	}
	return nil
}
