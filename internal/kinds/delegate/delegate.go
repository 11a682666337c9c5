package delegate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/berth-net/berth/internal/cni/result"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
)

// Options of New.
type Options struct {
	Exec invoke.Exec // runs the plugins (internal/runner/client)
	// Open opens the network namespace of a pod, as ns.Ref.Open does.
	Open func(ns.Ref) (ns.Handle, error)
	// Run names this run of the agent. No other run has the same name.
	Run string
	// First limits the first try of a DEL; 0: FirstTry.
	First time.Duration
	// GCTime and StatusTime limit what the plugins of a network take for these verbs; 0: the constants of these names.
	GCTime, StatusTime time.Duration
}

// The first try of a DEL ends soon: the same pod's other networks wait for it, since a container's plugins run one after the other (CNI 1.1,
// section 3, "Lifecycle & Ordering"), and the pod's network namespace goes after the agent's answer. Later tries have all the time
// that the engine gives, for slow plugins. That has to be less than a minute: then whereabouts 0.9.2, if it has no API server, says success and has
// given nothing back.
const FirstTry = 4 * time.Second

// Delegates have other plugins make networks for pods.
type Delegates struct {
	Options

	mu sync.Mutex
	// begun has each spec, by its text, for which this run has executed a plugin, until its Release succeeds. The specs are what
	// this run knows of the results.
	begun map[string]*Spec
	// tried has the specs, by their text, for which this run has tried a DEL that has not succeeded.
	tried map[string]bool
	// shutNow has the networks whose GC is under way; the channel is closed when it has ended.
	shutNow map[string]chan struct{}
	// last has the list for which this run has last executed ADD, by its network.
	last map[string]*Spec
}

// New returns delegates.
func New(o Options) *Delegates {
	o.First, o.GCTime, o.StatusTime = cmp.Or(o.First, FirstTry), cmp.Or(o.GCTime, GCTime), cmp.Or(o.StatusTime, StatusTime)
	return &Delegates{Options: o, begun: map[string]*Spec{}, tried: map[string]bool{}, shutNow: map[string]chan struct{}{}, last: map[string]*Spec{}}
}

// Kind returns the kind. Its things end: another program may take a pod's interface away, and the plugins might give a new one
// another address, of which nobody would tell the runtime. So the engine takes none again that was whole.
func (d *Delegates) Kind() hold.Kind {
	return hold.Kind{
		Stage:     hold.Use,
		New:       func() hold.Spec { return new(Spec) },
		Discovers: true,
		Ends:      true,
		Keyed:     true,
		Acquire:   d.acquire,
		Verify:    hold.VerifyEach(d.verify),
		Release:   hold.Each(d.release),
	}
}

// Of returns what plugins get for a hold with a spec; nil: plugins are not executed for it.
func Of(s hold.Spec) *Spec {
	switch s := s.(type) {
	case *Spec:
		return s
	case *IPAM:
		return &s.Spec
	case *Lease:
		return &s.Spec
	}
	return nil
}

// specOf returns a hold's spec.
func specOf(h hold.Hold) (*Spec, error) {
	if s := Of(h.Spec); s != nil {
		return s, nil
	}
	return nil, fmt.Errorf("a hold of kind %s is no delegate", h.Spec.Kind())
}

// acquire executes ADD, unless it has been. If an ADD may have begun that nobody knows the end of, because it failed or the agent was
// killed, acquire executes DEL first: a plugin need not bear a second ADD (CNI 1.1, section 2, "Lifecycle & Ordering").
func (d *Delegates) acquire(ctx context.Context, h hold.Hold) error {
	s, err := specOf(h)
	if err != nil {
		return err
	}
	d.recall(s)
	if s.placeless() || s.lends() {
		return nil
	}
	netns, err := d.Open(s.Netns)
	if errors.Is(err, ns.ErrGone) {
		return fmt.Errorf("%w: %w", hold.ErrHomeless, err)
	}
	if err != nil {
		return err
	}
	defer netns.Close()
	if s.Done {
		return d.there(s, netns)
	}
	all, err := s.plugins()
	if err == nil && len(all) > 1 { // before the first one runs; a single one is looked for by who executes it
		err = errors.Join(d.find(ctx, s, all)...)
	} else if err == nil {
		err = errors.Join(d.aim(ctx, s, all)...)
	}
	if err == nil {
		err = d.await(ctx, s.Network)
	}
	if err != nil {
		return err
	}
	d.remember(s)
	if d.mayHaveBegun(s) {
		if err := d.del(ctx, s, s.Netns.Path); err != nil {
			return fmt.Errorf("undoing an earlier ADD: %w", err)
		}
		s.Result = ""
	}
	if s.Type == "" {
		if err := vacant(s, netns); err != nil {
			return err
		}
	}
	d.note(s)
	err = d.add(ctx, s, all)
	if s.Result == "" && errors.As(err, new(unstarted)) { // the first plugin was not executed, nor any other
		d.forget(s)
		return err
	}
	d.note(s)
	return err
}

// unstarted is an error which says that a plugin was not executed.
type unstarted interface{ Unstarted() }

// vacant refuses a network whose interface is there already: the plugins' DEL would delete it.
func vacant(s *Spec, netns ns.Handle) error {
	there, err := netns.HasLink(s.Ifname)
	if err == nil && there {
		return fmt.Errorf("interface %s exists in the pod: %w", s.Ifname, hold.ErrForeign)
	}
	return err
}

// verify looks whether the pod still has what the plugins have made. It executes no plugin: CHECK does (Check). A network whose network
// namespace nobody knows counts as there.
func (d *Delegates) verify(_ context.Context, h hold.Hold) error {
	s, err := specOf(h)
	if err != nil {
		return err
	}
	known := *s
	d.recall(&known)
	if known.placeless() {
		return nil
	}
	netns, err := d.Open(s.Netns)
	if errors.Is(err, ns.ErrGone) {
		return fmt.Errorf("%s: %w: %w", s, hold.ErrGone, err)
	}
	if err != nil {
		return err
	}
	defer netns.Close()
	if known.Done {
		return d.there(&known, netns)
	}
	switch there, err := netns.HasLink(s.Ifname); {
	case err != nil:
		return err
	case there:
		return fmt.Errorf("%s: %w", s, hold.ErrHalfMade)
	}
	return fmt.Errorf("%s: %w", s, hold.ErrGone)
}

// there returns hold.ErrEnded if a pod has none of the interfaces that the plugins have made there. The plugins may have made none.
func (d *Delegates) there(s *Spec, netns ns.Handle) error {
	names, err := s.interfaces()
	if err != nil || len(names) == 0 {
		return err
	}
	for _, name := range names {
		if there, err := netns.HasLink(name); there || err != nil {
			return err
		}
	}
	return fmt.Errorf("%s: %w: no interface of %q is in the pod", s, hold.ErrEnded, names)
}

// interfaces returns the names of the pod's interfaces in the result.
func (s *Spec) interfaces() (names []string, err error) {
	r, err := s.Parsed()
	if err != nil {
		return nil, err
	}
	for _, i := range r.Interfaces {
		if i.Sandbox != "" {
			names = append(names, i.Name)
		}
	}
	return names, nil
}

// Parsed returns the result of ADD in the newest version; an empty one if none is known.
func (s *Spec) Parsed() (*types100.Result, error) {
	if s.Result == "" {
		return new(types100.Result), nil
	}
	r, bad := result.Parse([]byte(s.Result), s.Version)
	if bad != nil {
		return nil, fmt.Errorf("the result of network %s: %w", s.Network, bad)
	}
	return r, nil
}

// release executes DEL, unless it is certain that no plugin was ever executed for the spec: a network whose plugin is missing would
// else owe its DEL for ever. If the pod's network namespace is gone, or another one is at its path, the plugins get none, as the
// specification has it: they give back what is left, such as addresses, and touch no other pod. Files go last.
func (d *Delegates) release(ctx context.Context, h hold.Hold) error {
	s, err := specOf(h)
	if err != nil {
		return err
	}
	known := *s
	d.recall(&known)
	if !d.mayHaveBegun(&known) {
		return nil
	}
	path := s.Netns.Path
	netns, err := d.Open(s.Netns)
	switch {
	case errors.Is(err, ns.ErrGone):
		path = ""
	case err != nil:
		return err
	default:
		defer netns.Close()
	}
	ctx, cancel := d.limited(ctx, s)
	defer cancel()
	if err := d.del(ctx, &known, path); err != nil {
		return err
	}
	if err := s.removeFiles(); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.begun, s.String())
	delete(d.tried, s.String())
	return nil
}

// limited returns the context of a try of a DEL.
func (d *Delegates) limited(ctx context.Context, s *Spec) (context.Context, context.CancelFunc) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.tried[s.String()] {
		return context.WithCancel(ctx)
	}
	d.tried[s.String()] = true
	return context.WithTimeout(ctx, d.First)
}

// removeFiles deletes the files that tell of the network.
func (s *Spec) removeFiles() error {
	var errs []error
	for _, path := range s.Files {
		if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// mayHaveBegun reports whether a plugin may have been executed for a spec.
func (d *Delegates) mayHaveBegun(s *Spec) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return s.Run != d.Run || s.Done || d.begun[s.String()] != nil
}

// note remembers that plugins are executed for a spec, and what they have answered.
func (d *Delegates) note(s *Spec) {
	d.mu.Lock()
	defer d.mu.Unlock()
	known := *s
	d.begun[s.String()] = &known
}

// forget takes back that plugins are executed for a spec.
func (d *Delegates) forget(s *Spec) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.begun, s.String())
}

// recall fills in what this run knows of a spec: the ledger's record of it may be older.
func (d *Delegates) recall(s *Spec) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if known := d.begun[s.String()]; known != nil && !s.Done {
		s.Result, s.Done = known.Result, known.Done
	}
}
