// Package podstatus is the kind of the annotation that tells people which networks a pod has (nad.KeyStatus). The hold says whose
// annotation it is, and not the text: the text follows from the ledger, and is written again when it has become another one.
package podstatus

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/hold"
)

// KindName is the name of the kind, in ledger records too.
const KindName = "podstatus"

// Limit is how long a pod's ADD waits for the API server, by default. After that a sweep tries again.
const Limit = time.Second

// Options of New.
type Options struct {
	// Text returns the annotation of the pod with a first attachment.
	Text func(first hold.ID) (string, error)
	// Write writes it. A pod that is gone is success.
	Write func(ctx context.Context, pod *api.Pod, text string) error
	// Changing reports whether somebody is changing the networks of the pod with a first attachment, and has the annotation written at the
	// end (AtEnd); nil: nobody ever does.
	Changing func(first hold.ID) bool
	// Limit limits one Write; 0: Limit.
	Limit time.Duration
}

// Statuses writes the annotations.
type Statuses struct {
	Options

	mu      sync.Mutex
	told    map[string]string // what this run has written, by the spec's text: after a restart it writes all once more
	writing map[string]string // and what it is writing: the API server may have it already
}

// New returns statuses.
func New(o Options) *Statuses {
	if o.Limit == 0 {
		o.Limit = Limit
	}
	if o.Changing == nil {
		o.Changing = func(hold.ID) bool { return false }
	}
	return &Statuses{Options: o, told: map[string]string{}, writing: map[string]string{}}
}

// Spec is the annotation of a pod.
type Spec struct {
	First     hold.ID `json:"first"` // the pod's first attachment
	Namespace string  `json:"namespace"`
	Name      string  `json:"name"`
	UID       string  `json:"uid,omitempty"` // "": the runtime has not said it
}

// Kind returns KindName.
func (s *Spec) Kind() string { return KindName }

func (s *Spec) String() string {
	return fmt.Sprintf("network status of pod %s/%s (%s)", s.Namespace, s.Name, s.First)
}

// Kind returns the kind. Its holds only tell: the API server's absence keeps no pod from coming or going.
func (k *Statuses) Kind() hold.Kind {
	return hold.Kind{
		Stage:   hold.Tell,
		New:     func() hold.Spec { return new(Spec) },
		Acquire: k.acquire,
		Verify:  hold.VerifyEach(k.verify),
		Release: hold.Each(k.release),
	}
}

func specOf(h hold.Hold) (*Spec, error) {
	s, ok := h.Spec.(*Spec)
	if !ok {
		return nil, fmt.Errorf("a hold of kind %s is no pod's status", h.Spec.Kind())
	}
	return s, nil
}

func (k *Statuses) acquire(ctx context.Context, h hold.Hold) error {
	s, err := specOf(h)
	if err != nil {
		return err
	}
	text, err := k.Text(s.First)
	if err != nil {
		return err
	}
	k.begin(s, text)
	defer k.end(s)
	ctx, cancel := context.WithTimeout(ctx, k.Limit)
	defer cancel()
	if err := k.Write(ctx, &api.Pod{Namespace: s.Namespace, Name: s.Name, UID: s.UID}, text); err != nil {
		return fmt.Errorf("writing the %s: %w", s, err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.told[s.String()] = text
	return nil
}

// begin notes what is being written. The engine writes an annotation's texts one after the other.
func (k *Statuses) begin(s *Spec, text string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.writing[s.String()] = text
}

func (k *Statuses) end(s *Spec) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.writing, s.String())
}

// ending is the key of AtEnd's value.
type ending struct{}

// AtEnd returns a context for whoever has changed a pod's networks, and now has the annotation written.
func AtEnd(ctx context.Context) context.Context { return context.WithValue(ctx, ending{}, true) }

// verify compares what this run has written, or is writing, with what is to be written. If what it is writing cannot be written, a
// later look says so. While networks come and go, the annotation waits for the last one.
func (k *Statuses) verify(ctx context.Context, h hold.Hold) error {
	s, err := specOf(h)
	if err != nil {
		return err
	}
	text, err := k.Text(s.First)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	writing, writes := k.writing[s.String()]
	switch told, has := k.told[s.String()]; {
	case writes && writing == text:
		return nil
	case !has:
		return fmt.Errorf("%s: %w: this agent has not written it", s, hold.ErrGone)
	case told != text && ctx.Value(ending{}) == nil && k.Changing(s.First):
		return nil
	case told != text:
		return fmt.Errorf("%s: %w: the pod's networks are others by now", s, hold.ErrChanged)
	}
	return nil
}

// release forgets the annotation. It goes with the pod; if the pod stays, and gets another sandbox, the annotation is that one's.
func (k *Statuses) release(_ context.Context, h hold.Hold) error {
	s, err := specOf(h)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.told, s.String())
	return nil
}
