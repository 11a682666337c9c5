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
