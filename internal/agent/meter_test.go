package agent

import (
	"context"
	"errors"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/nettest"
)

// meter remembers what an agent counts.
type meter struct {
	mu       sync.Mutex
	repairs  map[string]int
	findings map[string]int
	reloads  []error
}

func (m *meter) Repaired(kind string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.repairs[kind]++
}

func (m *meter) Found(findings map[string]int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.findings = maps.Clone(findings)
}

func (m *meter) Reloaded(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reloads = append(m.reloads, err)
}

func (m *meter) look(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
}

// An agent counts its repairs, says what the last audit or sweep has found, and whether the
// configuration that was read last is in force.
func TestMeter(t *testing.T) {
	r := start(t, "default=10.88.0.0/24")
	m := &meter{repairs: map[string]int{}}
	r.core.Meter = m
	host := r.add(request("c", nettest.Pod(t))).Interfaces[0].Name
	nettest.Run(t, r.node.Here, "ip link set "+host+" mtu 1400")
	if _, err := r.Audit(t.Context()); err != nil {
		t.Error(err)
	}
	m.look(func() {
		if m.findings["changed"] != 1 || m.repairs["link"] != 0 {
			t.Errorf("after an audit: %v, %v", m.findings, m.repairs)
		}
		m.findings = nil
	})
	r.Sweep(t.Context())
	m.look(func() {
		if m.findings["changed"] != 1 || m.repairs["link"] != 1 {
			t.Errorf("after a sweep: %v, %v", m.findings, m.repairs)
		}
	})
	r.wantClean()
	m.look(func() {
		if n, said := m.findings["changed"]; n != 0 || !said || m.repairs["link"] != 1 {
			t.Errorf("after the repair: %v, %v", m.findings, m.repairs)
		}
	})

	ctx, cancel := context.WithCancel(t.Context())
	readings, ended := make(chan config.Reading), make(chan struct{})
	go func() {
		defer close(ended)
		r.ground.KeepConfigured(ctx, readings, make(chan time.Duration, 9))
	}()
	fine, overlapping := *r.ground.Config(), *r.ground.Config()
	r.pools = []string{"default=10.88.0.0/25"}
	c, err := r.conf()
	must(t, err)
	overlapping.Pools = c.Pools
	unreadable := errors.New("line 1: unknown key")
	for _, read := range []config.Reading{{Config: &fine}, {Err: unreadable}, {Config: &overlapping}} {
		readings <- read
	}
	nettest.Eventually(t, "three configurations to be read", func() (all bool) {
		m.look(func() { all = len(m.reloads) == 3 })
		return all
	})
	cancel()
	<-ended
	if m.reloads[0] != nil || !errors.Is(m.reloads[1], unreadable) || m.reloads[2] == nil {
		t.Errorf("reloads: %v", m.reloads)
	}
	if why := r.ground.Refused(); why != m.reloads[2].Error() {
		t.Errorf("the last of them is refused: %q", why)
	}
}
