package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/test/crash/killer"
)

// slot is a pod of the loop, in which one container follows another. One worker at a time
// has the slot.
type slot struct {
	*pod
	mu       sync.Mutex // guards attached, and the pod's tries, for goroutines that only read them
	attached bool
}

// often returns true at random, in percent of a hundred cases.
func often(random *rand.Rand, percent int) bool { return random.IntN(100) < percent }

// deadly is how long after its start the loop kills a plugin at the latest. Most plugins end
// sooner.
const deadly = 4 * time.Millisecond

// exec runs a plugin as a runtime does, and may kill it meanwhile.
func (l *churn) exec(c killer.Command, f *files, random *rand.Rand) ([]byte, error) {
	defer f.close()
	p, err := killer.StartFree(c)
	if err != nil {
		return nil, err
	}
	if often(random, 35) && l.plugins.Load() < 2*l.agents.Load()+10 { // otherwise hardly any kill would be an agent's
		timer := time.AfterFunc(time.Duration(random.Int64N(int64(deadly))), func() { p.Signal(unix.SIGKILL) })
		defer timer.Stop()
	}
	out, err := finish(p, f)
	if errors.Is(err, errKilled) {
		l.plugins.Add(1)
	}
	return out, err
}

// verb executes a verb for a slot.
func (l *churn) verb(s *slot, verb string, random *rand.Rand) error {
	if verb == "DEL" {
		s.leaves()
	}
	c, f, err := s.command(verb)
	if err != nil {
		return err
	}
	out, err := l.exec(c, f, random)
	if err != nil {
		return fmt.Errorf("%s of %s: %w", verb, s.container, err)
	}
	if verb == "ADD" {
		return s.pod.attached(out)
	}
	return nil
}

// passing reports whether an error may be due to a kill, so that a runtime tries again.
func passing(err error) bool {
	var e *api.Error
	return errors.Is(err, errKilled) || errors.As(err, &e) && e.Code == 11
}

// step does the next thing with a slot.
func (l *churn) step(s *slot, random *rand.Rand) error {
	if !s.attached {
		return l.add(s, random)
	}
	switch {
	case often(random, 15):
		if err := l.verb(s, "CHECK", random); err != nil && !passing(err) {
			return err
		}
		return nil
	case often(random, 10): // the pod is gone before its DEL
		if err := s.delete(); err != nil {
			return err
		}
		if err := l.del(s, random); err != nil {
			return err
		}
		return s.make()
	}
	return l.del(s, random)
}

// add attaches a new container, and executes DEL if ADD fails.
func (l *churn) add(s *slot, random *rand.Rand) error {
	old := *s.pod
	s.mu.Lock()
	s.renew()
	s.mu.Unlock()
	err := l.verb(s, "ADD", random)
	if err != nil && !passing(err) {
		return err
	}
	if err != nil {
		return l.del(s, random)
	}
	s.mu.Lock()
	s.attached = true
	s.mu.Unlock()
	if old.container != "" && often(random, 20) { // a late DEL of its predecessor
		before := slot{pod: &old}
		return l.del(&before, random)
	}
	return nil
}

// del repeats DEL until it succeeds.
func (l *churn) del(s *slot, random *rand.Rand) error {
	s.mu.Lock()
	s.attached = false
	s.mu.Unlock()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		err := l.verb(s, "DEL", random)
		if err == nil || !passing(err) {
			return err
		}
		if time.Now().After(end) {
			return left("after %v: %v", patience, err)
		}
	}
}

// collect executes GC with all containers valid: those that exist, and those that may be
// attached before the agent looks.
func (l *churn) collect(random *rand.Rand) error {
	valid := ""
	for _, s := range l.slots {
		s.mu.Lock()
		for try := range 3 {
			valid += fmt.Sprintf(`{"containerID":"c%d-%d","ifname":"eth0"},`, s.number, s.tries+try)
		}
		s.mu.Unlock()
	}
	c, f, err := l.w.plugin("GC", nil, `"cni.dev/valid-attachments":[`+valid[:len(valid)-1]+`]`)
	if err != nil {
		return err
	}
	if _, err := l.exec(c, f, random); err != nil && !passing(err) {
		return err
	}
	return nil
}
