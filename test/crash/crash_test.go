package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/crash/killer"
	"github.com/berth-net/berth/test/programs"
)

func TestMain(m *testing.M) {
	killer.Board()
	programs.Main(m)
}

// nothingLeft finds a link and a file that are left behind, and finds nothing if nothing is
// left. take refuses an address that rests.
func TestResidueIsFound(t *testing.T) {
	nettest.Need(t)
	bin := programs.Own(t)
	w, err := newWorld(bin, pools4)
	t.Cleanup(func() {
		if err := w.close(); err != nil {
			t.Error(err)
		}
	})
	if err == nil {
		err = errors.Join(w.restart(), w.settle(), blank(w))
	}
	nettest.Must(t, err)
	if err := w.nothingLeft(); err != nil {
		t.Errorf("with nothing left: %v", err)
	}
	stray := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "stray0"}, PeerName: "stray1"}
	file := filepath.Join(w.root.State(), "instance.new")
	p := w.pods[0]
	for _, c := range []struct {
		name     string
		do, undo func() error
		says     string
	}{
		{"a link", func() error { return w.node.Do(func() error { return netlink.LinkAdd(stray) }) },
			func() error { return w.node.Do(func() error { return netlink.LinkDel(stray) }) }, "+link stray0 "},
		{"a file", func() error { return os.WriteFile(file, nil, 0o600) },
			func() error { return os.Remove(file) }, "+file var/lib/berth/instance.new "},
	} {
		nettest.Must(t, c.do())
		if err := w.nothingLeft(); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s is left, and found is: %v", c.name, err)
		}
		nettest.Must(t, c.undo())
	}
	if err := errors.Join(p.attach(), p.detach(), w.nothingLeft()); err != nil {
		t.Errorf("with nothing left again: %v", err)
	}
	if err := w.take("another", p.addrs); err == nil {
		t.Errorf("%v may be given again while it rests", p.addrs)
	}
}

// Of pods with networks of other plugins, nothingLeft finds a plugin that still runs, and an address that host-local has kept, but none
// that nobody can give back.
func TestNetworkResidueIsFound(t *testing.T) {
	nettest.Need(t)
	bin := programs.Own(t)
	w, err := newWorld(bin, pools4)
	t.Cleanup(func() {
		if err := w.close(); err != nil {
			t.Error(err)
		}
	})
	if err == nil {
		err = errors.Join(w.with(programs.Peers(t, "ptp", "host-local"), false), w.restart(), w.settle(), attached(1)(w))
	}
	nettest.Must(t, err)
	if links := w.veths(t); links != 2 {
		t.Errorf("a pod with two networks has %d links on the node", links)
	}
	nettest.Must(t, w.pods[0].detach(), w.nothingLeft())
	plugin, err := killer.StartFree(killer.Command{Netns: w.node.Ref().Path, Path: "/bin/sleep", Args: []string{"60"}, Env: []string{"CNI_COMMAND=ADD"}})
	nettest.Must(t, err)
	if err := w.nothingLeft(); err == nil || !strings.Contains(err.Error(), "/bin/sleep 60") {
		t.Errorf("a plugin still runs, and found is: %v", err)
	}
	nettest.Must(t, plugin.Kill(), w.nothingLeft())
	file := filepath.Join(w.reservations(), "one", "10.1.0.9")
	nettest.Must(t, os.WriteFile(file, []byte("c0-1\r\neth0"), 0o600))
	if err := w.nothingLeft(); err == nil || !strings.Contains(err.Error(), "+file var/lib/cni/networks/one/10.1.0.9 ") {
		t.Errorf("host-local has kept an address, and found is: %v", err)
	}
	nettest.Must(t, os.Truncate(file, 0), w.nothingLeft())
}

// veths counts the node's veths.
func (w *world) veths(t *testing.T) (n int) {
	t.Helper()
	nettest.Must(t, w.node.Do(func() error {
		all, err := netlink.LinkList()
		for _, l := range all {
			if l.Type() == "veth" {
				n++
			}
		}
		return err
	}))
	return n
}

// One scenario from end to end: the plugin is killed before and after the effect of each
// call of its ADD, once for each remedy.
func TestScenario(t *testing.T) {
	nettest.Need(t)
	i := slices.IndexFunc(scenarios(), func(s scenario) bool { return s.name == "berth-cni ADD" })
	s := scenarios()[i]
	tally, err := s.run(programs.Own(t), t.Logf)
	nettest.Must(t, err)
	if calls := len(tally.calls); calls < 2 || len(tally.covered) != 2*calls || len(tally.missed) != 0 || tally.faults < 4*calls {
		t.Errorf("%d calls, %d points, %d kills, missed %q", calls, len(tally.covered), tally.faults, tally.missed)
	}
}

// A plan counts only the calls that matter to it, and samples calls that are repeated many
// times.
func TestPlan(t *testing.T) {
	write := killer.Call{Name: "write", What: "f"}
	answer := killer.Call{Name: "recvfrom", What: "netlink", Netlink: true, Answer: true}
	p := &plan{verdict: kills[0], n: everyOne + 2}
	for range 100 {
		p.judge(answer)
		p.judge(write)
	}
	hit, calls := p.went()
	if hit != "write f 32" || len(calls) != everyOne+3 { // the 16th, 32nd and 64th
		t.Errorf("hit %q of %q", hit, calls)
	}
	p = &plan{verdict: failures[0], at: "recvfrom netlink 2"}
	for _, c := range []killer.Call{write, answer, write} {
		if v := p.judge(c); v.Do != killer.Pass {
			t.Errorf("%s: %s", c, v)
		}
	}
	if v := p.judge(answer); v != failures[0] {
		t.Errorf("the second answer: %s", v)
	}
}
