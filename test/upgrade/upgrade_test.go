// Package upgrade replaces the programs of a node, with pods attached, by the programs of another
// version: those of the version before (test/before) by those of this version, and back.
package upgrade

import (
	"context"
	"net/netip"
	"os"
	"os/exec"
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

const pool = "default=10.88.0.0/24,fd88::/64"

// newNode starts a node with the programs of the version before. The test's end removes what
// agents held, and nothing may be left of any version.
func newNode(t *testing.T) *node {
	t.Helper()
	nettest.Need(t)
	n := &node{t: t, bin: t.TempDir(), before: filepath.Join(programs.Tree(t), "bin", "before"), now: programs.Own(t)}
	if _, err := os.Stat(filepath.Join(n.before, ".stamp")); err != nil {
		programs.Missing(t, "the programs of the version before are missing: run `make before`")
	}
	nettest.Run(t, nil, "ip address replace 192.0.2.1/32 dev lo") // the node talks to pods from this address
	n.replace(n.before)
	look := func() nettest.State { return nettest.Snapshot(t, nil).Without("sysctl") }
	empty := look()
	t.Cleanup(func() {
		must(t, n.agent.Remove())
		nettest.Same(t, empty, look(), "residue")
	})
	n.agent = programs.Run(t, n.bin, t.TempDir(), pool) // Run's cleanup stops the agent
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
	mapped *programs.Conversation // by its host port; nil: it has none
}

// add attaches a pod. keys are those of programs.Conf.
func (n *node) add(name string, keys ...string) pod {
	n.t.Helper()
	p := pod{netns: nettest.Pod(n.t), name: name}
	raw, err := programs.Exec(n.bin, n.agent.Root, "ADD", name, p.netns.Ref().Path, keys...)
	must(n.t, err)
	p.at, err = programs.ReadResult(raw)
	must(n.t, err)
	p.result = `"prevResult":` + string(raw)
	p.talk = programs.Converse(n.t, p.netns, p.at)
	p.talk.GoesOn("after ADD")
	return p
}

// The host port and the limits of a pod of this version. A version before 0.1.0 has neither.
const furnished = `"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":7}],` +
	`"bandwidth":{"ingressRate":8000000,"ingressBurst":800000,"egressRate":8000000,"egressBurst":800000}}`

var hostPort = netip.MustParseAddrPort("192.0.2.1:8080")

// addFurnished is add of a pod that has a host port and limits of bandwidth.
func (n *node) addFurnished(name string) pod {
	n.t.Helper()
	p := n.add(name, furnished)
	talk := programs.ConverseBy(n.t, p.netns, p.at, hostPort)
	p.mapped = &talk
	n.lives(p, "after ADD")
	return p
}

// limits returns the qdiscs that limit what a pod gets.
func limits(t *testing.T, p pod) (found []string) {
	t.Helper()
	for line := range strings.Lines(nettest.Snapshot(t, nil).Only("qdisc").String()) {
		if strings.Contains(line, " "+p.at.Host+" ") && strings.Contains(line, "tbf") {
			found = append(found, line)
		}
	}
	return found
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
	if p.mapped == nil {
		return
	}
	p.mapped.GoesOn(when)
	if len(limits(n.t, p)) != 1 {
		n.t.Errorf("%s, nothing limits what %s gets", when, p.name)
	}
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

// Pods of the version before live on under this version, which deletes them without a trace: pods
// whose DEL the former plugin has queued, pods whose DEL the new plugin queues for the new agent, and
// pods that are deleted while the new agent runs. A new pod has host ports and limits of bandwidth, which the
// version before cannot give, and keeps them when this version's programs are replaced by
// themselves.
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

			fresh := n.addFurnished("fresh")
			for _, former := range []pod{stays, queued, later} {
				if fresh.at.Addrs[0] == former.at.Addrs[0] {
					t.Errorf("%s has the address of %s, which rests or is in use", fresh.at.Addrs[0], former.name)
				}
			}
			must(t, end(n.agent))
			n.replace(n.now)
			fresh.mapped.GoesOn("while the programs are replaced")
			n.start()
			for _, p := range []pod{stays, fresh} {
				n.lives(p, "after another replacement")
				n.verb("DEL", p)
			}
			again := n.addFurnished("again") // the former pod's host port is free
			n.verb("DEL", again)
			nettest.Delete(t, again.netns)
			for _, p := range []pod{stays, queued, later, fresh} {
				nettest.Delete(t, p.netns)
			}
			n.agent.Audit(t)
		})
	}
}

// Back to the version before: either it goes on with what this version has written, or it says that
// it cannot read the ledger, and changes nothing. Then either this version goes on, or the former
// version rebuilds its ledger, and knows the pods. A build from before 0.1.0, whose ledger was a
// bbolt database, calls the ledger damaged.
func TestBack(t *testing.T) {
	n := newNode(t)
	old := n.add("old")
	must(t, n.agent.Stop())
	n.replace(n.now)
	n.start()
	p := n.addFurnished("new")
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
		n.lives(old, "after the refusal")
		n.lives(p, "after the refusal")
		must(t, n.agent.Stop())
		n.replace(n.before)
		cmd := exec.Command(filepath.Join(n.bin, "berthd"), "--root", n.agent.Root, "--pool", pool, "--rebuild-ledger")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("the version before does not rebuild its ledger: %v\n%s", err, out)
		}
		n.start()
		p.mapped = nil // a version before 0.1.0 has no host ports
	}
	for _, p := range []pod{old, p} {
		n.lives(p, "after the way back")
		n.verb("DEL", p)
		nettest.Delete(t, p.netns)
	}
	n.agent.Audit(t)
	// The version before does not know, and so does not remove, this version's routes of addresses that
	// stand for the loopback's addresses.
	must(t, n.agent.Stop())
	n.replace(n.now)
	n.start()
	n.agent.Audit(t)
}
