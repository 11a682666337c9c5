package link

import "github.com/berth-net/berth/internal/kernel/rtnl"

// HostMetric6 is the metric of the host's IPv6 routes to pods.
const HostMetric6 = hostMetric6

// Unpolice has the links believe that the kernel has refused to limit what they let in.
func (l *Links) Unpolice(err error) { l.policer.Ask(func() error { return err }) }

// Remembered returns how many links the memory knows.
func (l *Links) Remembered() int {
	l.memory.mu.Lock()
	defer l.memory.mu.Unlock()
	return len(l.memory.links)
}

// CutOff cuts off a link that the caller has seen before.
func (l *Links) CutOff(s *Spec, seen rtnl.Link) error { return l.cutOff(s, seen) }

// Furnish repairs the host's end of a link that the caller has seen before.
func (l *Links) Furnish(s *Spec, seen rtnl.Link) error {
	macs, err := s.check()
	if err != nil {
		return err
	}
	_, err = l.furnishHost(s, macs, seen, nothing())
	return err
}

// DeleteAll deletes links, and calls the function between once it has found them.
func (l *Links) DeleteAll(between func(), specs ...*Spec) (errs []error) {
	targets := l.targets(specs)
	between()
	l.deleteGroup(targets)
	l.deleteRest(targets)
	for _, t := range targets {
		errs = append(errs, t.err)
	}
	return errs
}
