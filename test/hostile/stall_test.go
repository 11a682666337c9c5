package hostile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/test/programs"
)

// manyHostile is how many pods are hostile at once: if the agent waits for each of
// them in turn, as long as an ADD may wait for a pod to settle, all other pods wait
// for minutes.
const manyHostile = 6

// unsettle makes sure that a pod is never whole again. The pod looks up none of its own
// addresses, so that they never become usable, and deletes its eth0.
func unsettle(t *testing.T, pods []*pod) {
	t.Helper()
	for _, p := range pods {
		nettest.Run(t, p.at, "ip rule del pref 0")
		nettest.Run(t, p.at, "ip -6 rule del pref 0")
		nettest.Run(t, p.at, "ip link del eth0")
	}
}

// Hostile pods make the agent's repair of their own links wait. Meanwhile the agent
// mends the others' links, its socket, and its table, reads its configuration,
// attaches and detaches pods, the hostile ones too, and ends when it is told to:
// while it waits for a hostile pod, nobody else waits (t12.sh, t17.sh).
func TestUnsettledPodsHoldNobodyElse(t *testing.T) {
	n := newNode(t, plain)
	hostile, b, leaves := n.adds("a", manyHostile), n.add("b"), n.add("leaves")
	unsettle(t, hostile)

	nettest.Run(t, nil, "ip link set "+b.host+" down")
	nettest.Eventually(t, "another pod's link to be mended", func() bool { return isUp(t, b.host) })
	nettest.Ping(t, nil, b.ip4)

	socket := root.Dir(n.Root).Socket()
	must(t, os.Remove(socket))
	nettest.Eventually(t, "the socket to be there again", func() bool {
		_, err := os.Lstat(socket)
		return !errors.Is(err, fs.ErrNotExist)
	})
	table := nettest.Snapshot(t, nil).Only("nft")
	nft(t, "flush ruleset")
	nettest.Eventually(t, "the table to be there again", func() bool {
		return table.Diff(nettest.Snapshot(t, nil).Only("nft")) == ""
	})

	comes := n.add("comes")
	nettest.Ping(t, nil, comes.ip4)
	n.del(leaves, wait)
	n.del(hostile[0], wait)
	nettest.Eventually(t, "the pods to be gone", func() bool { return len(programs.List(n.t, n.API)) == manyHostile+1 })
	n.wantGone()
	if err := n.Stop(); err != nil { // all of it, behind whatever is still waited for
		t.Error(err)
	}
}

// More pods than the agent has sockets are deleted while a program in each of them uses its interface,
// so that the kernel answers none of these deletions before the program ends
// (netdev_wait_allrefs_any). Nothing is owed meanwhile, and nobody waits: other pods are mended, attached
// and detached.
func TestUsedInterfacesHoldNobodyElse(t *testing.T) {
	n := newNode(t, plain)
	hostile, b := n.adds("a", 9), n.add("b")
	for i, p := range hostile {
		nettest.HoldLink(t, p.at, "eth0")
		leaves := n.add(fmt.Sprint("leaves", i))
		n.del(p)
		n.del(leaves, wait)
	}
	nettest.Run(t, nil, "ip link set "+b.host+" down")
	nettest.Eventually(t, "another pod's link to be mended", func() bool { return isUp(t, b.host) })
	nettest.Ping(t, nil, n.add("comes").ip4)
	nettest.Eventually(t, "the pods to be gone", func() bool { return len(programs.List(n.t, n.API)) == 2 })
	n.wantGone()
}

// The agent is killed while the kernel does not answer the deletion of a pod's interface, because a
// program in the pod uses it. Another agent starts at once, and serves.
func TestKilledWhileAnInterfaceIsUsed(t *testing.T) {
	n := newNode(t, plain)
	p := n.add("a")
	letGo := nettest.HoldLink(t, p.at, "eth0")
	n.del(p)
	nettest.Eventually(t, "the pod to be gone", func() bool { return len(programs.List(n.t, n.API)) == 0 })
	n.Crash()
	must(t, n.Start(t.Context()))
	b := n.add("b")
	nettest.Ping(t, nil, b.ip4)
	n.del(b, wait)
	letGo()
	n.wantGone()
}

// A runtime gives pods that never settle a second interface while they run, and repeats those ADDs.
// As long as all these ADDs wait for the pods, others' ADDs, lists and audits have their
// turns, and the agent ends as soon as it is told to.
func TestUnsettledPodsKeepNoPlaces(t *testing.T) {
	const metrics = "127.0.0.1:9478"
	n := newNode(t, "concurrency: 4\nmetrics: "+metrics+"\n"+plain) // 3 places for ADDs
	hostile := n.adds("a", 4)
	var all sync.WaitGroup
	var answered atomic.Int32
	add := func(p *pod) {
		add := programs.Plugin(n.bin, "ADD", p.id, p.at.Ref().Path)
		add.Env = append(add.Env, "CNI_IFNAME=net1") // the last one counts
		add.Stdin = strings.NewReader(programs.Conf(n.Root))
		all.Go(func() {
			if out, err := add.Output(); err == nil {
				t.Errorf("a pod that does not receive is attached: %s", out)
			}
			answered.Add(1)
		})
	}
	for _, p := range hostile {
		nettest.Run(t, p.at, "ip rule del pref 0")
		nettest.Run(t, p.at, "ip -6 rule del pref 0")
		add(p)
	}
	for _, p := range hostile {
		nettest.Eventually(t, "the second interface to be there", func() bool {
			return nettest.Command(p.at, nettest.Program(t, "ip"), "link", "show", "net1").Run() == nil
		})
		add(p)
	}
	nettest.Eventually(t, "all ADDs to wait without a place", func() bool {
		resp, err := http.Get("http://" + metrics + "/metrics")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		return err == nil && strings.Contains(string(text), fmt.Sprintf("\nberth_requests_aside %d\n", 2*len(hostile)))
	})
	n.add("innocent")
	if _, err := n.API.Audit(t.Context()); err != nil {
		t.Error(err)
	}
	if n := answered.Load(); n != 0 {
		t.Errorf("others had their turn when %d of the hostile pods' ADDs were answered", n)
	}
	if err := n.Stop(); err != nil {
		t.Error(err)
	}
	all.Wait()
}

// Some pods never settle, and the agent is killed and started again. The agent serves a pod that comes
// and a pod that goes, while it still waits for the hostile pods (t13.sh).
func TestUnsettledPodsHoldNoStart(t *testing.T) {
	n := newNode(t, plain)
	hostile, leaves := n.adds("a", manyHostile), n.add("leaves")
	n.Crash()
	unsettle(t, hostile)

	started := make(chan error, 1)
	go func() { started <- n.Start(t.Context()) }()
	nettest.Eventually(t, "the agent to listen", func() bool {
		_, err := n.API.Health(t.Context())
		return err == nil
	})
	var comes *pod
	answered := make(chan error, 1)
	go func() {
		answered <- func() (err error) {
			if comes, err = n.tryAdd("comes"); err != nil {
				return err
			}
			return n.tryDel(leaves, wait)
		}()
	}()
	var err error
	nettest.Eventually(t, "a pod to be attached, and another to be gone", func() bool {
		select {
		case err = <-answered:
			return true
		default:
			return false
		}
	})
	err = errors.Join(err, <-started)
	must(t, err)
	nettest.Ping(t, nil, comes.ip4)
	if left := len(programs.List(n.t, n.API)); left != manyHostile+1 {
		t.Errorf("%d attachments, want those of the hostile pods and of the new one", left)
	}
	n.wantGone()
}
