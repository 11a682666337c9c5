package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/daemon/server"
	"github.com/berth-net/berth/internal/fault"
	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/nettest"
)

// modelOps lists the operations of the model test. The more often the list has an operation, the more
// often the operation happens.
var modelOps = []struct {
	name string
	do   func(*agentModel)
}{
	{"add", (*agentModel).opAdd}, {"add", (*agentModel).opAdd}, {"add", (*agentModel).opAdd}, {"add", (*agentModel).opAdd},
	{"add", (*agentModel).opAdd}, {"add", (*agentModel).opAdd}, {"add", (*agentModel).opAdd},
	{"repeat", (*agentModel).opRepeat}, {"repeat", (*agentModel).opRepeat},
	{"delete", (*agentModel).opDelete}, {"delete", (*agentModel).opDelete}, {"delete", (*agentModel).opDelete},
	{"delete late", (*agentModel).opDeleteLate},
	{"bulk", (*agentModel).opBulk}, {"race", (*agentModel).opRace}, {"twins", (*agentModel).opTwins},
	{"check", (*agentModel).opCheck}, {"check", (*agentModel).opCheck},
	{"gc", (*agentModel).opGC},
	{"restart", func(m *agentModel) { m.restart(true) }},
	{"sweep", func(m *agentModel) { m.Sweep(m.ctx) }},
	{"end pod", (*agentModel).opEndPod},
	{"damage", (*agentModel).opDamage}, {"damage", (*agentModel).opDamage},
	{"flush nft", (*agentModel).opFlush},
	{"reload", (*agentModel).opReload},
	{"hung", (*agentModel).opHung}, {"away", (*agentModel).opAway}, {"reboot", (*agentModel).opReboot},
}

// request makes an ADD of a container into a pod.
func (m *agentModel) request(container string, pod int, keys ...string) api.AddRequest {
	req := request(container, m.pods[pod], keys...)
	req.Args = "K8S_POD_NAMESPACE=model;K8S_POD_NAME=pod-" + container
	return req
}

// patience returns a context that lasts as long as a runtime waits: not long in a life whose fault
// does not heal.
func (m *agentModel) patience() (context.Context, context.CancelFunc) {
	if m.plan.Mode == fault.FailForever {
		return context.WithTimeout(m.ctx, time.Second)
	}
	return context.WithTimeout(m.ctx, 30*time.Second)
}

func (m *agentModel) container() string { return fmt.Sprintf("c%d", m.random.IntN(modelContainers)) }

// one returns any container that is attached and not doomed, or "".
func (m *agentModel) one() string {
	for i, n := 0, m.random.IntN(modelContainers); i < modelContainers; i++ {
		c := fmt.Sprintf("c%d", (n+i)%modelContainers)
		if b := m.attached[c]; b != nil && !b.doomed {
			return c
		}
	}
	return ""
}

// opAdd attaches a container to any pod, from either pool, and now and then with a wish. The
// container may be new or have another pod, and the pod may have another container.
func (m *agentModel) opAdd() {
	c, pod := m.container(), m.random.IntN(modelPods)
	if m.random.IntN(3) > 0 { // most often to a pod that is free
		for i := range modelPods {
			if n := (pod + i) % modelPods; m.tenant(n) == "" {
				pod = n
				break
			}
		}
	}
	var keys []string
	var wish netip.Addr
	pool := "default"
	if m.random.IntN(4) == 0 {
		pool = "extra"
		keys = append(keys, `"pool":"extra"`)
	} else if m.random.IntN(4) == 0 {
		wish = netip.AddrFrom4([4]byte{10, 88, 7, byte(m.random.IntN(40))})
		keys = append(keys, fmt.Sprintf(`"runtimeConfig":{"ips":["%s"]}`, wish))
	}
	cur, tenant := m.attached[c], m.tenant(pod)
	repeated := cur != nil && cur.pod == m.pods[pod]
	var code uint
	switch {
	case repeated && wish.IsValid() && !slices.Contains(cur.addrs, wish):
		code = 7
	case repeated: // the agent gives the same answer, whatever pool the ADD names
	case pool == "extra" && !m.extra:
		code = 7
	case tenant != "" && tenant != c:
		code = 101
	case wish.IsValid() && m.taken(wish):
		code = 101
	}
	refused := code == 7 || code == 101 && tenant != "" && tenant != c // a refused ADD changes nothing
	if cur != nil && !repeated && !refused {
		delete(m.attached, c) // released before its successor is taken
	}
	b, err := m.tryAttach(c, pod, keys...)
	m.note("ADD of %s to pod %d, %v, expecting code %d: %v, %v", c, pod, keys, code, b, err)
	switch {
	case err == nil && code == 0:
		if wish.IsValid() && !repeated && b.addrs[0] != wish {
			m.t.Errorf("%s asked for %s and got %v", c, wish, b.addrs)
		}
	case err == nil:
		m.t.Errorf("ADD of %s to pod %d: %v, want code %d", c, pod, b.addrs, code)
	case m.plan.Surfaced() != "":
	case code == 0 && wish.IsValid() && isCode(err, 101): // the agent may still release the wish's former owner
	default:
		wantError(m.t, err, code, "")
	}
	if err != nil && m.attached[c] == nil {
		m.insistDelete(c, false)
	}
}

// tenant returns the container that is in a pod.
func (m *agentModel) tenant(pod int) string {
	for c, b := range m.attached {
		if b.pod == m.pods[pod] {
			return c
		}
	}
	return ""
}

// taken reports whether an address is in use or resting.
func (m *agentModel) taken(a netip.Addr) bool {
	for _, b := range m.attached {
		if slices.Contains(b.addrs, a) && !b.doomed { // the address of a doomed container may be free by now
			return true
		}
	}
	_, before := m.given[a]
	return before && m.cooldown == time.Hour
}

// tryAttach does an ADD and tells the model the result.
func (m *agentModel) tryAttach(c string, pod int, keys ...string) (*berth, error) {
	if m.attached[c] == nil {
		m.unsure[c] = true
	}
	before := m.now().Started
	ctx, cancel := m.patience()
	defer cancel()
	raw, err := m.Add(ctx, m.request(c, pod, keys...), m.now())
	if err != nil {
		return nil, err
	}
	return m.attach(c, pod, before, raw), nil
}

// attach notes the result of an ADD, and checks its addresses.
func (m *agentModel) attach(c string, pod int, before int64, raw json.RawMessage) *berth {
	delete(m.unsure, c)
	if cur := m.attached[c]; cur != nil {
		if cur.raw != string(raw) {
			m.t.Errorf("ADD of %s again answers\n%s\nbefore\n%s", c, raw, cur.raw)
		}
		return cur
	}
	list := m.List(api.Filter{Network: "net", Container: c, State: api.StateAttached})
	if len(list) != 1 {
		m.t.Fatalf("%s is attached, and its list is %+v", c, list)
	}
	b := &berth{id: list[0].ID, pod: m.pods[pod], raw: string(raw), before: before}
	for _, s := range list[0].Addresses {
		a := netip.MustParseAddr(s)
		b.addrs = append(b.addrs, a)
		for other, o := range m.attached {
			if slices.Contains(o.addrs, a) && !o.doomed {
				m.t.Errorf("%s is given to %s, and %s has it", a, c, other)
			}
		}
		if was, ok := m.given[a]; ok && m.cooldown == time.Hour {
			m.t.Errorf("%s is given to %s, and %s had it within its cooldown", a, c, was)
		}
		m.given[a] = c
	}
	if len(b.addrs) != 2 || !strings.Contains(b.raw, b.addrs[0].String()) {
		m.t.Errorf("%s has %v, its result is %s", c, b.addrs, raw)
	}
	m.attached[c] = b
	m.results[c] = append(m.results[c], list[0].HostVeth)
	return b
}

// opRepeat repeats an ADD, into the same netns.
func (m *agentModel) opRepeat() {
	c := m.one()
	if c == "" {
		return
	}
	pod := slices.Index(m.pods, m.attached[c].pod)
	if _, err := m.tryAttach(c, pod); err != nil && m.plan.Surfaced() == "" {
		m.t.Errorf("ADD of %s again: %v", c, err)
	}
}

// opDelete deletes a container, known or not, in one of the ways of runtimes and people: waiting or
// not, once or twice, by key, by container or by pod.
func (m *agentModel) opDelete() {
	c := m.container()
	if one := m.one(); one != "" && m.random.IntN(4) > 0 {
		c = one
	}
	b := m.attached[c]
	m.insistDelete(c, m.random.IntN(2) == 0)
	if b == nil || b.doomed || m.dead() || m.random.IntN(4) > 0 {
		return
	}
	for from, o := range m.attached { // cut off is cut off, released or not
		if o.doomed || o.hurt || from == c {
			continue
		}
		if nettest.Echo(o.pod, b.addrs[0], 20*time.Millisecond) == nil {
			m.t.Errorf("%s is detached, and %s answers %s", c, b.addrs[0], from)
		}
		return
	}
}

// insistDelete repeats a DEL until the agent promises the deletion, or dies.
func (m *agentModel) insistDelete(c string, wait bool) {
	b := m.attached[c]
	delete(m.attached, c)
	m.unsure[c] = true
	filter := []api.Filter{key(c), {Container: c}, {Namespace: "model", Pod: "pod-" + c}}[m.random.IntN(3)]
	if filter.Network != "" && m.random.IntN(4) > 0 {
		filter.Link = m.kept(c)
	}
	for try := 0; !m.dead(); try++ {
		ctx, cancel := m.patience()
		d, known, err := m.Delete(ctx, filter, wait, m.now())
		late := ctx.Err() != nil
		cancel()
		m.note("DEL of %s (wait %t, by %+v): %+v, known %t, %v", c, wait, filter, d, known, err)
		if try == 0 && err == nil && b != nil && !b.doomed && !known {
			m.t.Errorf("DEL of %s: it is not known", c)
		}
		if err == nil {
			delete(m.unsure, c)
			if at := m.wanted()[c]; at.ID != "" {
				m.t.Errorf("DEL of %s leaves %+v", c, at)
			}
			if left := m.List(key(c)); wait && d.Owed == 0 && len(left) > 0 && !late {
				m.t.Errorf("DEL of %s has waited, and leaves %+v", c, left)
			}
			return
		}
		if m.plan.Surfaced() == "" {
			m.t.Errorf("DEL of %s: %v", c, err)
		}
		if try >= 1 {
			m.plan.Heal()
		}
	}
}

// opDeleteLate executes a DEL from before an attachment's ADD.
func (m *agentModel) opDeleteLate() {
	c := m.one()
	if c == "" {
		return
	}
	at := m.attached[c].before
	late := server.When{Started: at, Deadline: at + int64(time.Minute)}
	filter := key(c)
	if m.random.IntN(2) == 0 {
		filter.Link = m.kept(c)
	}
	_, _, err := m.Delete(m.ctx, filter, false, late) // the DEL may know a former attachment of c
	if err != nil && m.plan.Surfaced() == "" || m.wanted()[c].ID != m.attached[c].id {
		m.t.Errorf("late DEL of %s: %v; the list has %+v", c, err, m.wanted()[c])
	}
}

// opRace deletes a container while it is added.
func (m *agentModel) opRace() {
	c, pod := m.container(), m.random.IntN(modelPods)
	if m.attached[c] != nil || m.tenant(pod) != "" {
		return
	}
	m.unsure[c] = true
	var both sync.WaitGroup
	ctx, cancel := m.patience()
	defer cancel()
	req := m.request(c, pod)
	both.Go(func() { _, _ = m.Add(ctx, req, m.now()) })
	both.Go(func() { _, _, _ = m.Delete(ctx, key(c), false, m.now()) })
	both.Wait()
	m.insistDelete(c, true)
}

// opTwins adds a container twice at once: the answers are the same.
func (m *agentModel) opTwins() {
	c, pod := m.container(), m.random.IntN(modelPods)
	if m.attached[c] != nil || m.tenant(pod) != "" {
		return
	}
	m.unsure[c] = true
	before := m.now().Started
	ctx, cancel := m.patience()
	defer cancel()
	when := m.now()
	req := m.request(c, pod)
	var raws [2]json.RawMessage
	var errs [2]error
	var both sync.WaitGroup
	for i := range 2 {
		both.Go(func() { raws[i], errs[i] = m.Add(ctx, req, when) })
	}
	both.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		if m.plan.Surfaced() == "" {
			m.t.Errorf("two ADDs of %s: %v", c, err)
		}
		m.insistDelete(c, false)
		return
	}
	for _, raw := range raws {
		m.attach(c, pod, before, raw)
	}
}

// opCheck executes CHECK of an attachment: CHECK succeeds, unless somebody damaged the
// attachment or the agent's table.
func (m *agentModel) opCheck() {
	c := m.one()
	if c == "" {
		return
	}
	b := m.attached[c]
	err := m.Check(m.ctx, m.request(c, slices.Index(m.pods, b.pod), `"prevResult":`+b.raw), m.now())
	damaged := b.hurt || m.flushed && err != nil && strings.Contains(err.Error(), "nftables table")
	if err != nil && !(damaged && isCode(err, 103)) && !m.plan.IsDead() { // a dead agent answers nothing true
		m.t.Errorf("CHECK of %s: %v", c, err)
	}
}

func isCode(err error, code uint) bool {
	var e *api.Error
	return errors.As(err, &e) && e.Code == code
}

// opGC executes a GC that names most of the attached containers as valid. GC releases the others.
func (m *agentModel) opGC() {
	req := api.GCRequest{Network: "net"}
	var gone []string
	for c := range m.attached {
		if m.random.IntN(4) > 0 {
			req.Valid = append(req.Valid, api.GCValid{ContainerID: c, Ifname: "eth0"})
		} else {
			gone = append(gone, c)
		}
	}
	_, err := m.GC(m.ctx, req, m.now())
	m.note("GC of %v: %v", gone, err)
	if err != nil && m.plan.Surfaced() == "" {
		m.t.Errorf("GC: %v", err)
	}
	for _, c := range gone {
		if m.wanted()[c].ID != "" && err == nil {
			m.t.Errorf("GC leaves %s", c)
		}
		delete(m.attached, c)
		m.unsure[c] = true
	}
	for _, c := range gone {
		m.insistDelete(c, false)
	}
}

// opEndPod ends a pod without a DEL. Another pod takes the ended pod's place.
func (m *agentModel) opEndPod() {
	i := m.random.IntN(modelPods)
	for _, b := range m.attached {
		if b.pod == m.pods[i] {
			b.doomed = true
		}
	}
	m.note("pod %d ends", i)
	ref := m.pods[i].Ref()
	nettest.Delete(m.t, m.pods[i])
	req := request("homeless", m.pods[(i+1)%modelPods])
	req.Netns = api.Netns(ref)
	_, err := m.Add(m.ctx, req, m.now())
	wantError(m.t, err, 102, "")
	m.pods[i] = nettest.Pod(m.t)
}

// opDamage changes something of an attachment behind the agent's back.
func (m *agentModel) opDamage() {
	c := m.one()
	if c == "" {
		return
	}
	b := m.attached[c]
	list := m.List(api.Filter{Container: c})
	if b.hurt || len(list) != 1 {
		return
	}
	b.hurt = true
	at, command := m.node.Here, ""
	switch m.random.IntN(5) {
	case 0:
		command = "ip link del " + list[0].HostVeth
	case 1:
		at, command = b.pod, "ip link del eth0"
	case 2:
		command = "ip route del " + list[0].Addresses[0]
	case 3:
		command = "ip link set " + list[0].HostVeth + " down"
	case 4:
		command = "ip link set " + list[0].HostVeth + " mtu 1400"
	}
	m.note("%s: %s", c, command)
	nettest.Run(m.t, at, command)
}

// opFlush deletes the agent's nftables table, as `nft flush ruleset` does.
func (m *agentModel) opFlush() {
	m.flushed = true
	must(m.t, nft.Open(m.node.Here).Delete(m.core.Instance))
}

// opReload adds the second pool to the configuration, or takes it out.
func (m *agentModel) opReload() {
	m.extra = !m.extra
	m.pools = []string{modelPool}
	if m.extra {
		m.pools = append(m.pools, modelExtra)
	}
	for try := 0; !m.dead(); try++ {
		conf, err := m.conf()
		must(m.t, err)
		ctx, cancel := m.patience()
		err = m.ground.Reload(ctx, conf)
		cancel()
		m.note("reload, extra pool %t: %v", m.extra, err)
		if err == nil {
			return
		}
		if m.plan.Surfaced() == "" {
			m.t.Errorf("reload: %v", err)
		}
		if try >= 1 {
			m.plan.Heal()
		}
	}
}
