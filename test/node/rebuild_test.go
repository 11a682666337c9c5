package node

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

// The ledger is lost under running pods. berthd refuses to start. The rebuild says what it has
// adopted and what is lost, and berthd goes on. The pods reach each other all the time, and
// their DELs leave nothing.
func TestRebuildLedger(t *testing.T) {
	a := startAgent(t, pools)
	ps, got := a.podsOf(3)
	still := func() {
		t.Helper()
		pingAll(t, ps[0], got[1])
		pingAll(t, ps[1], got[0])
	}
	a.kill()
	a.lose(a.root.Ledger())
	a.refused("ledger is lost", "links on the node (3, such as b", "--rebuild-ledger")
	a.refused("ledger is lost") // the first refusal has left no empty ledger
	still()

	cmd := a.berthd("--rebuild-ledger")
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := runFor(cmd); err != nil {
		t.Fatalf("berthd --rebuild-ledger: %v\n%s", err, log.String())
	}
	for _, want := range []string{"net/c0/eth0", "net/c1/eth0", "net/c2/eth0", "default", ps[0].Ref().Path, "Attachments adopted: 3.", "The agent gives out no other address until", "DNS"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, out.String())
		}
	}
	if strings.Contains(log.String(), "DNS") {
		t.Errorf("the log repeats what is lost:\n%s", log.String())
	}
	still()
	a.start()
	still()
	a.wantClean()
	if n := len(a.list()); n != 3 {
		t.Errorf("%d attachments", n)
	}
	_, err := a.tryAdd("new", nettest.Pod(t))
	programs.WantError(t, err, 100, "the ledger was lost")
	a.del("c2")
	a.kill()
	a.start()
	_, err = a.tryAdd("new", nettest.Pod(t)) // the quarantine outlives a restart
	programs.WantError(t, err, 100, "the ledger was lost")
	still()
	a.del("c0")
	a.del("c1")
	a.wantGone()
}

// Names that are too long for a link's alias have lost their end with the ledger. A DEL without
// the result of ADD means the only pod whose names fit, and a GC spares this pod if its list
// has it. If two pods cannot be told apart, only each pod's link names the pod, also when the other
// pod is gone.
func TestRebuildWithLongNames(t *testing.T) {
	network, end := strings.Repeat("n", 128), strings.Repeat("c", 126)
	a := startAgent(t, pools)
	results := map[string]string{}
	verb := func(verb, container string, keys ...string) {
		t.Helper()
		out, err := a.execIn(network, verb, container, "", keys...)
		if err != nil {
			t.Errorf("%s of %s: %v\n%s", verb, container, err, out)
		}
	}
	containers := []string{"a" + end, "b" + end, "away" + end[4:], end + "1", end + "2"}
	for _, c := range containers {
		out, err := a.execIn(network, "ADD", c, nettest.Pod(t).Ref().Path)
		must(t, err)
		results[c] = string(out)
	}
	lone, unlisted, away, twin, other := containers[0], containers[1], containers[2], containers[3], containers[4]
	a.kill()
	must(t, os.Remove(a.root.Ledger()))
	must(t, runFor(a.berthd("--rebuild-ledger")))
	verb("DEL", away)
	a.start()

	left := func(when string, want ...string) {
		t.Helper()
		var have []string
		for _, at := range a.list() {
			if at.State != api.StateAttached {
				continue
			}
			for c, result := range results {
				if strings.Contains(result, at.HostVeth) {
					have = append(have, c)
				}
			}
		}
		slices.Sort(want)
		slices.Sort(have)
		if !slices.Equal(have, want) {
			t.Errorf("%s, these are attached:\n%s\nwant\n%s", when, strings.Join(have, "\n"), strings.Join(want, "\n"))
		}
	}
	prevResult := func(c string) string { return `"prevResult":` + results[c] }
	left("behind a DEL without an agent", lone, unlisted, twin, other)
	verb("GC", "", fmt.Sprintf(`"cni.dev/valid-attachments":[{"containerID":%q,"ifname":"eth0"},{"containerID":%q,"ifname":"eth0"}]`, lone, twin))
	left("behind a GC", lone, twin, other)
	verb("DEL", lone)
	left("behind a DEL", twin, other)
	verb("DEL", twin)
	left("behind a DEL that may mean either", twin, other)
	verb("DEL", twin, prevResult(twin))
	left("behind a DEL with its result", other)
	verb("DEL", twin)
	left("behind a repeated DEL", other)
	verb("DEL", other, prevResult(other))
	a.wantGone()
}

// read returns the content of the ledger's file.
func (a *agent) read() []byte {
	a.t.Helper()
	raw, err := os.ReadFile(a.root.Ledger())
	must(a.t, err)
	return raw
}

func (a *agent) write(raw []byte) {
	a.t.Helper()
	must(a.t, os.WriteFile(a.root.Ledger(), raw, 0o600))
}

// lose takes a file away, or a folder.
func (a *agent) lose(path string) {
	a.t.Helper()
	must(a.t, os.RemoveAll(path))
}

func (a *agent) rebuild() {
	a.t.Helper()
	cmd := a.berthd("--rebuild-ledger")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := runFor(cmd); err != nil {
		a.t.Fatalf("berthd --rebuild-ledger: %v\n%s", err, out.String())
	}
}

// swept waits until sweeps have removed what has no owner. link is one of the agent's
// links: a stray link gets a similar name.
func (a *agent) swept(link string) {
	a.t.Helper()
	stray := link[:5] + "aaaaaaaaaa"
	for _, command := range []string{
		"ip link add %s type veth peer name stray", "ip link property add dev %[1]s altname berth-%[1]s", "ip link set %s up",
	} {
		nettest.Run(a.t, a.node, fmt.Sprintf(command, stray))
	}
	nettest.Eventually(a.t, "two sweeps", func() bool {
		_, err := netlink.LinkByName(stray)
		return err != nil
	})
}

// A copy of the ledger that is older than a pod is put in its place. berthd refuses to start on
// it, and changes nothing; with the current copy, or rebuilt, all pods are there. The same
// holds if others have taken something from that pod's link.
func TestOlderLedger(t *testing.T) {
	nettest.Program(t, "ip") // skips here if it has to: no agent could clean up without its ledger
	putBack := func(a *agent, current []byte) { a.write(current) }
	rebuilt := func(a *agent, _ []byte) { a.rebuild() }
	for how, c := range map[string]struct {
		hurt string // the later pod's link
		mend func(a *agent, current []byte)
	}{
		"put back":                    {"", putBack},
		"rebuilt":                     {"", rebuilt},
		"without alias, put back":     {"alias somebody's", putBack},
		"without alias, rebuilt":      {"alias somebody's", rebuilt},
		"out of its group, rebuilt":   {"group 0", rebuilt},
		"down and renamed, put back":  {"down name ren0 alias somebody's", putBack},
		"all but its names, put back": {"down group 0 alias somebody's address 02:00:00:00:00:09", putBack},
	} {
		t.Run(how, func(t *testing.T) {
			a := newAgent(t, nil)
			a.configure("cooldown: 1s\nsweepInterval: 1s\npools:\n- {name: default, cidrs: [10.88.0.0/24]}\n")
			a.startWatched()
			old, later := nettest.Pod(t), nettest.Pod(t)
			a.add("old", old)
			a.stop()
			copied := a.read()
			a.start()
			got := a.add("later", later)
			a.kill()
			current := a.read()
			a.write(copied)
			if c.hurt != "" {
				nettest.Run(t, nil, "ip link set "+got.host+" "+c.hurt)
			}
			files := nettest.Files(t, string(a.root))
			a.refused("older than its pods", "(1, such as b", "--rebuild-ledger")
			nettest.Same(t, files, nettest.Files(t, string(a.root)), "the refusal changed files")
			if c.hurt == "" {
				pingAll(t, old, got)
			}
			c.mend(a, current)
			a.start()
			a.swept(got.host)
			pingAll(t, old, got)
			if n := len(a.list()); n != 2 {
				t.Errorf("%d attachments", n)
			}
			a.wantClean()
		})
	}
}

// An older copy of the ledger lacks a pod whose deletion waits, with a result that has lost the
// addresses. These addresses rest all the same, and so do all others that the copy may lack.
func TestOlderLedgerLetsAddressesRest(t *testing.T) {
	a := startAgent(t, "--pool=default=10.88.0.0/29")
	a.add("c0", nettest.Pod(t))
	a.stop()
	older := a.read()
	a.start()
	pod := nettest.Pod(t)
	raw, err := a.exec("ADD", "c1", pod.Ref().Path)
	must(t, err)
	var result map[string]any
	must(t, json.Unmarshal(raw, &result))
	delete(result, "ips")
	cut, err := json.Marshal(result)
	must(t, err)
	a.stop()
	must(t, a.tryDel("c1", pod.Ref().Path, `"prevResult":`+string(cut)))
	a.write(older)
	a.start()
	_, err = a.tryAdd("new", nettest.Pod(t))
	programs.WantError(t, err, 100, "the ledger was lost")
	if n := a.pools().Resting + a.pools().Used; n < 2 {
		t.Errorf("the deleted pod's address does not rest: %+v", a.pools())
	}
}

// A pod's link has lost its alias, and then the ledger is lost: nobody knows the pod's key. A
// DEL with the result of ADD means the pod all the same. A DEL of another pod, with a wrong
// result, does not.
func TestRebuildWithoutAlias(t *testing.T) {
	nettest.Program(t, "ip") // as in TestOlderLedger
	for _, away := range []bool{false, true} {
		t.Run(fmt.Sprint("agent away ", away), func(t *testing.T) {
			a := startAgent(t, pools)
			pod, other := nettest.Pod(t), nettest.Pod(t)
			result, err := a.exec("ADD", "c", pod.Ref().Path)
			must(t, err)
			a.add("other", other)
			host := a.list()[slices.IndexFunc(a.list(), func(at api.Attachment) bool { return at.ContainerID == "c" })].HostVeth
			a.kill()
			a.lose(a.root.Ledger())
			nettest.Run(t, nil, "ip link set "+host+" alias somebody's")
			a.rebuild()
			a.start()
			a.del("other", wait, `"prevResult":`+string(result))
			if l := a.list(); len(l) != 1 || l[0].HostVeth != host || l[0].State != api.StateAttached {
				t.Errorf("behind another pod's DEL with its result: %+v", l)
			}
			if away {
				a.kill()
			}
			if err := a.tryDel("c", pod.Ref().Path, `"prevResult":`+string(result)); err != nil {
				t.Error(err)
			}
			if away {
				a.start()
			}
			a.wantGone()
		})
	}
}

// The ledger is taken away from under an agent, or another file put in its place, and somebody
// starts a second agent. The second agent ends, and has written nothing.
func TestSecondAgentWithoutItsLedger(t *testing.T) {
	for how, take := range map[string]func(a *agent){
		"removed": func(a *agent) { a.lose(a.root.Ledger()) },
		"replaced": func(a *agent) {
			raw := a.read()
			a.lose(a.root.Ledger())
			a.write(raw)
		},
	} {
		t.Run(how, func(t *testing.T) {
			a := newAgent(t, nil)
			a.configure("cooldown: 1s\nsweepInterval: 1s\npools:\n- {name: default, cidrs: [10.88.0.0/24]}\n")
			a.startWatched()
			take(a)
			there, _ := os.ReadFile(a.root.Ledger())
			a.refused("another agent serves this root")
			if now, _ := os.ReadFile(a.root.Ledger()); !bytes.Equal(now, there) {
				t.Errorf("the second agent has written a ledger: %d bytes were there, and %d are", len(there), len(now))
			}
			pods, got := a.podsOf(2)
			a.kill()
			a.refused("--rebuild-ledger")
			a.rebuild()
			a.start()
			a.swept(got[0].host)
			pingAll(t, pods[0], got[1])
			pingAll(t, pods[1], got[0])
			a.wantClean()
		})
	}
}

// The ledger of an agent without pods is lost, and perhaps its run folder as well: with the
// ledger the agent has lost which addresses rest, and so all addresses rest.
func TestAddressesRestWithoutLedger(t *testing.T) {
	for _, too := range []string{"alone", "with the run folder"} {
		t.Run(too, func(t *testing.T) {
			a := startAgent(t, pools)
			if _, err := a.tryAdd("c", nettest.Pod(t)); err != nil { // nobody has lost anything
				t.Fatalf("ADD after the first start: %v", err)
			}
			a.del("c", wait)
			a.kill()
			a.lose(a.root.Ledger())
			if too != "alone" {
				a.lose(a.root.Run())
			}
			a.start()
			_, err := a.tryAdd("d", nettest.Pod(t))
			programs.WantError(t, err, 100, "the ledger was lost")
		})
	}
}
