package agent

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/berth-net/berth/internal/boottime"
	"github.com/berth-net/berth/internal/deletions"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
)

// These operations happen in the model while no agent answers. The next agent does the queued
// deletions before anything else, and a pod that was cut off does not come back.

// opHung is a DEL whose plugin does not get the agent's answer.
func (m *agentModel) opHung() {
	c := m.one()
	if c == "" {
		return
	}
	m.pluginDelete(c)
	for try := 0; !m.dead(); try++ {
		ctx, cancel := m.patience()
		err := m.drain.All(ctx)
		cancel()
		m.note("drain: %v", err)
		switch {
		case err == nil:
			if at := m.wanted()[c]; at.ID != "" {
				m.t.Errorf("its queued deletion leaves %+v", at)
			}
			return
		case m.plan.Surfaced() == "":
			m.t.Errorf("draining: %v", err)
		case try >= 1:
			m.plan.Heal()
		}
	}
}

// opAway ends the agent's life. Before the next life begins, plugins delete pods, damaged deletions
// come into the queue, and somebody may delete the agent's table.
func (m *agentModel) opAway() {
	m.finish()
	var cut []string
	for range 1 + m.random.IntN(3) {
		if c := m.one(); c != "" {
			if link := m.pluginDelete(c); link != "" {
				cut = append(cut, link)
			}
		}
	}
	if m.random.IntN(2) == 0 {
		m.putGarbage()
	}
	if m.random.IntN(3) == 0 {
		m.deleteTable()
	}
	m.live(true)
	for _, name := range cut {
		if l, err := m.node.Conn.Link(name); err == nil && l.Up && l.Group == m.node.Groups.Live() {
			m.t.Errorf("its plugin has cut %s off, and it is set up again", name)
		}
	}
}

// opReboot reboots the node: of the agent, only the files in /var are left.
func (m *agentModel) opReboot() {
	m.finish()
	if c := m.one(); c != "" && m.random.IntN(2) == 0 {
		m.pluginDelete(c) // right before the reboot
	}
	m.note("reboot")
	m.deleteTable()
	for _, b := range m.attached {
		b.doomed = true
	}
	for _, p := range m.pods {
		nettest.Delete(m.t, p)
	}
	mine := "b" + m.core.Instance[:4]
	nettest.Eventually(m.t, "the links of the pods are gone", func() bool {
		return !strings.Contains(nettest.Snapshot(m.t, nil).Only("link").String(), mine)
	})
	m.run("ip -4 route flush type unreachable")
	m.run("ip -6 route flush type unreachable")
	must(m.t, os.RemoveAll(m.root.Run()))
	m.boots, m.booted = m.boots+1, boottime.Now()
	for i := range m.pods {
		m.pods[i] = nettest.Pod(m.t)
	}
	m.live(true)
}

// pluginDelete is a DEL that no agent answers: the plugin writes the deletion down, and cuts the
// pod off if the plugin knows the pod's link. pluginDelete returns the link of a pod that was cut off.
func (m *agentModel) pluginDelete(c string) (cut string) {
	b := m.attached[c]
	link := "b" + m.core.Instance[:4] + b.id
	delete(m.attached, c)
	m.queued[c] = b
	rec := deletions.Record{
		Network: "net", Container: c, Ifname: "eth0", Netns: b.pod.Ref().Path, Boot: m.node.Boot, Started: m.now().Started,
	}
	if m.random.IntN(4) > 0 { // with a prevResult
		rec.Link = m.kept(c)
		for _, a := range b.addrs {
			rec.Addresses = append(rec.Addresses, a.String())
		}
		rec.Cut = m.random.IntN(4) > 0
	}
	m.note("queued: %+v", rec)
	must(m.t, deletions.Write(m.root, rec))
	if rec.Cut && !b.hurt { // the link of a damaged attachment may be gone
		m.run("ip link set " + link + " down")
		return link
	}
	return ""
}

// kept returns the link that a DEL of a container names in its prevResult: the link of the last
// ADD; of an earlier ADD, because the runtime died before it kept the last result; of another
// container, by mistake; or of nobody.
func (m *agentModel) kept(c string) string {
	own, n := m.results[c], m.random.IntN(6)
	switch {
	case n == 0:
		return "b" + m.core.Instance[:4] + string(hold.NewID())
	case n == 1:
		if b := m.attached[m.one()]; b != nil {
			return "b" + m.core.Instance[:4] + b.id
		}
	case n < 4 && len(own) > 1:
		return own[m.random.IntN(len(own)-1)]
	}
	if len(own) == 0 {
		return ""
	}
	return own[len(own)-1]
}

// putGarbage puts a damaged deletion of an attached container into the queue.
func (m *agentModel) putGarbage() {
	c := m.one()
	if c == "" {
		return
	}
	rec := deletions.Record{Network: "net", Container: c, Ifname: "eth0", Boot: m.node.Boot, Started: m.now().Started}
	must(m.t, deletions.Write(m.root, rec))
	found, err := filepath.Glob(filepath.Join(deletions.Path(m.root), fmt.Sprintf("*-%016x-*.json", rec.Started)))
	if err != nil || len(found) != 1 {
		m.t.Fatalf("the deletion of %s is in %v, %v", c, found, err)
	}
	must(m.t, os.Truncate(found[0], int64(m.random.IntN(60))))
	m.note("a damaged deletion of %s", c)
	m.damaged++
}

// emptied checks that all queued deletions are done, and that damaged ones are set aside and
// shown. Then it deletes the damaged ones, as people do.
func (m *agentModel) emptied() {
	m.t.Helper()
	if n := len(m.pendingNames()); n > 0 {
		m.t.Errorf("%d deletions wait", n)
	}
	list := m.wanted()
	for c, b := range m.queued {
		if list[c].ID == b.id {
			m.t.Errorf("the queued deletion of %s was not done", c)
		}
		delete(m.queued, c)
	}
	shown, err := m.drain.Damaged()
	if err != nil || len(shown) != m.damaged {
		m.t.Errorf("%d files were damaged, and shown are %v, %v", m.damaged, shown, err)
	}
	for _, d := range shown {
		if err := os.Remove(filepath.Join(deletions.Path(m.root), "damaged", d.Name)); err != nil {
			m.t.Error(err)
		}
	}
	m.damaged = 0
}

// deleteTable deletes the agent's nftables table.
func (m *agentModel) deleteTable() {
	m.flushed = true
	here, err := ns.Self()
	must(m.t, err)
	defer here.Close()
	must(m.t, nft.Open(here).Delete(m.core.Instance))
}

// run runs a command on the node, also while no agent lives.
func (m *agentModel) run(command string) {
	m.t.Helper()
	f := strings.Fields(command)
	if out, err := exec.Command(f[0], f[1:]...).CombinedOutput(); err != nil {
		m.t.Fatalf("%s: %v\n%s", command, err, out)
	}
}
