// Package upgrade replaces the programs of a node, with pods attached, by those of another
// version: by this one from the version before (test/before), and back.
package upgrade

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

func TestMain(m *testing.M) { programs.Main(m) }

var must = nettest.Must

// node is a node with one agent, whose programs a test replaces.
type node struct {
	t      *testing.T
	bin    string // has the programs of one version at a time
	agent  *programs.Agent
	before string // folder of the version before
	now    string // folder of this version
}

// newNode starts a node with the programs of the version before. The test's end removes what
// agents held, and nothing may be left of any version.
func newNode(t *testing.T) *node {
	t.Helper()
	nettest.Need(t)
	n := &node{t: t, bin: t.TempDir(), before: filepath.Join(programs.Tree(t), "bin", "before"), now: programs.Own(t)}
	if _, err := os.Stat(filepath.Join(n.before, ".stamp")); err != nil {
		programs.Missing(t, "the programs of the version before are missing: run `make before`")
	}
	nettest.Run(t, nil, "ip address replace 192.0.2.1/32 dev lo") // the node talks to pods from it
	n.replace(n.before)
	look := func() nettest.State { return nettest.Snapshot(t, nil).Without("sysctl") }
	empty := look()
	t.Cleanup(func() {
		must(t, n.agent.Remove())
		nettest.Same(t, empty, look(), "residue")
	})
	n.agent = programs.Run(t, n.bin, t.TempDir(), "default=10.88.0.0/24,fd88::/64") // its cleanup stops it
	return n
}

// replace puts the programs of another version in place, as install(1) does.
func (n *node) replace(from string) {
	n.t.Helper()
	for _, name := range []string{"berth", "berthd", "berth-cni"} {
		raw, err := os.ReadFile(filepath.Join(from, name))
		must(n.t, err)
		at := filepath.Join(n.bin, name)
		must(n.t, os.WriteFile(at+".new", raw, 0o755))
		must(n.t, os.Rename(at+".new", at))
	}
}

// pod is a pod with its attachment and a connection.
type pod struct {
	netns  *ns.Netns
	name   string
	at     programs.Attached
	result string // key of a configuration that has the result of ADD
	talk   programs.Conversation
}

func (n *node) add(name string) pod {
	n.t.Helper()
	p := pod{netns: nettest.Pod(n.t), name: name}
	raw, err := programs.Exec(n.bin, n.agent.Root, "ADD", name, p.netns.Ref().Path)
	must(n.t, err)
	p.at, err = programs.ReadResult(raw)
	must(n.t, err)
	p.result = `"prevResult":` + string(raw)
	p.talk = programs.Converse(n.t, p.netns, p.at)
	p.talk.GoesOn("after ADD")
	return p
}

// verb runs a verb of the plugin for a pod, with the result of its ADD.
func (n *node) verb(verb string, p pod) {
	n.t.Helper()
	if _, err := programs.Exec(n.bin, n.agent.Root, verb, p.name, p.netns.Ref().Path, p.result); err != nil {
		n.t.Errorf("%s of %s: %v", verb, p.name, err)
	}
}

// lives fails the test unless a pod is whole, in the eyes of plugin and agent, and its connection
// goes on.
func (n *node) lives(p pod, when string) {
	n.t.Helper()
	p.talk.GoesOn(when)
	n.verb("CHECK", p)
}

func (n *node) start() {
	n.t.Helper()
	must(n.t, n.agent.Start(context.Background()))
}

// ends are the ways in which an agent ends before its program is replaced.
var ends = map[string]func(*programs.Agent) error{
	"stopped": func(a *programs.Agent) error { a.API.Close(); return a.Stop() },
	"killed":  func(a *programs.Agent) error { a.API.Close(); return a.Kill() },
}

// Pods of the version before live on under this one, which deletes them without a trace: those
// whose DEL the former plugin has queued, those whose DEL the new one queues for the new
// agent, and those that are deleted beside it.
func TestUpgrade(t *testing.T) {
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			stays, queued, later := n.add("stays"), n.add("queued"), n.add("later")
			must(t, end(n.agent))
			n.verb("DEL", queued)
			n.replace(n.now)
			n.verb("DEL", later)
			stays.talk.GoesOn("between the versions")
			n.start()
			n.lives(stays, "after the upgrade")
			nettest.Eventually(t, "the queued deletions to be done", func() bool {
				l := programs.List(t, n.agent.API)
				return len(l) == 1 && l[0].ContainerID == "stays"
			})
			n.agent.Audit(t)

			fresh := n.add("fresh")
			for _, former := range []pod{stays, queued, later} {
				if fresh.at.Addrs[0] == former.at.Addrs[0] {
					t.Errorf("%s has the address of %s, which rests or is in use", fresh.at.Addrs[0], former.name)
				}
			}
			for _, p := range []pod{stays, fresh} {
				n.verb("DEL", p)
			}
			for _, p := range []pod{stays, queued, later, fresh} {
				nettest.Delete(t, p.netns)
			}
			n.agent.Audit(t)
		})
	}
}

// Back to the version before: either it goes on with what this version has written, or it says
// that it cannot read the ledger, and changes nothing. A build from before 0.1.0, whose ledger was
// a bbolt database, calls the ledger damaged.
func TestBack(t *testing.T) {
	n := newNode(t)
	old := n.add("old")
	must(t, n.agent.Stop())
	n.replace(n.now)
	n.start()
	p := n.add("new")
	must(t, n.agent.Stop())
	n.replace(n.before)
	if err := n.agent.Start(context.Background()); err != nil {
		if !strings.Contains(err.Error(), "newer version") && !strings.Contains(err.Error(), "the file stays as it is") {
			t.Fatalf("the version before does not start, and does not say why: %v", err)
		}
		t.Logf("the version before refuses: %v", err)
		p.talk.GoesOn("without an agent")
		n.replace(n.now)
		n.start()
	}
	for _, p := range []pod{old, p} {
		n.lives(p, "after the way back")
		n.verb("DEL", p)
		nettest.Delete(t, p.netns)
	}
	n.agent.Audit(t)
}
