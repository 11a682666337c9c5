package hold

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Name is something that one owner at a time can have: an address, a CIDR of a
// pool, later a host port or a sandbox's pod name. The ledger alone claims and
// frees it.
type Name struct {
	Space string `json:"space"` // which sort of name, such as "address"
	Name  string `json:"name"`  // unique in its space, such as "10.88.0.7"
}

func (n Name) String() string { return n.Space + ":" + n.Name }

// Owner is one incarnation of something that has names and holds: an
// attachment, an agent's pool, later a sandbox or a container.
type Owner struct {
	ID        ID              `json:"id"`
	Needs     []ID            `json:"needs,omitempty"` // owners that it stands on: what they hold is released after what it holds
	Meta      json.RawMessage `json:"meta,omitempty"`  // opaque to engine and ledger
	Names     []Name          `json:"names,omitempty"`
	Ordered   bool            `json:"ordered,omitempty"`  // its Use holds are released one after the other, in reverse of acquisition
	Holds     []Hold          `json:"holds,omitempty"`    // in order of acquisition
	Before    *Extent         `json:"before,omitempty"`   // what lies beyond it is coming, by a change that has not ended; nil: nothing is
	Releasing time.Time       `json:"releasing,omitzero"` // zero: wanted; terminal once set
}

// Extent is how long an owner's lists are.
type Extent struct {
	Needs int `json:"needs"`
	Names int `json:"names"`
	Holds int `json:"holds"`
}

// Settled returns the owner's holds but those that a change is about to give it: they
// may not be there yet, or be taken back.
func (o Owner) Settled() []Hold {
	if o.Before == nil {
		return o.Holds
	}
	return o.Holds[:min(o.Before.Holds, len(o.Holds))]
}

// Wanted reports whether nobody has asked for the owner's release yet.
func (o Owner) Wanted() bool { return o.Releasing.IsZero() }

// Clone returns a copy that shares no slice with o. Specs are shared: they are
// not changed once Take has answered.
func (o Owner) Clone() Owner {
	o.Needs = slices.Clone(o.Needs)
	o.Names = slices.Clone(o.Names)
	o.Holds = slices.Clone(o.Holds)
	return o
}

// Hold is one thing in the world that must be given back on its own.
type Hold struct {
	Owner ID // whose stamp it has
	Spec  Spec
	// From is Owner, where an owner was passed the hold by that one; "": it is its own.
	From ID
}

// Spec is a kind's plain struct (as a pointer), complete enough to release the
// hold with nothing else known. Its fields are only ever added to.
type Spec interface {
	Kind() string
	// String names the thing in the kernel tools' words, such as
	// "link babcd0123456789". It is unique among the things of its kind, and
	// the same for a spec that Find made.
	String() string
}

// Namer is a Spec of a kind that discovers names: an address that a delegate, an
// operator or a cloud chooses. Names returns those that are known so far.
type Namer interface {
	Spec
	Names() []Name
}

// Unknown is the spec of a kind that this program does not have. It is shown
// and kept, and what holds it stays owed until a program that knows it runs.
type Unknown struct {
	Name string
	Raw  json.RawMessage
}

// Kind returns the name of the kind that wrote the spec.
func (u *Unknown) Kind() string { return u.Name }

func (u *Unknown) String() string { return fmt.Sprintf("%s %s", u.Name, u.Raw) }

// MarshalJSON returns the spec as it was read.
func (u *Unknown) MarshalJSON() ([]byte, error) { return u.Raw, nil }

// holdJSON is how a hold stands in a record. The owner is the record's, or the one that
// it is from.
type holdJSON struct {
	Kind string          `json:"kind"`
	Spec json.RawMessage `json:"spec"`
	From ID              `json:"from,omitempty"`
}

// MarshalJSON writes {"kind": ..., "spec": ...}, and "from" of a hold that was passed.
func (h Hold) MarshalJSON() ([]byte, error) {
	raw, err := json.Marshal(h.Spec)
	if err != nil {
		return nil, fmt.Errorf("encoding %s hold: %w", h.Spec.Kind(), err)
	}
	return json.Marshal(holdJSON{h.Spec.Kind(), raw, h.From})
}

// UnmarshalJSON reads what MarshalJSON wrote, with every spec as *Unknown;
// Kinds.Decode turns those it knows into their own types.
func (h *Hold) UnmarshalJSON(raw []byte) error {
	var j holdJSON
	if err := json.Unmarshal(raw, &j); err != nil {
		return err
	}
	if j.Kind == "" {
		return errors.New("hold without a kind")
	}
	h.Spec, h.From = &Unknown{j.Kind, j.Spec}, j.From
	return nil
}

func (h Hold) String() string {
	if h.Spec == nil {
		return "no hold of " + string(h.Owner)
	}
	return fmt.Sprintf("%s of %s", h.Spec.Kind(), h.Owner)
}

// NamesIn returns the owner's names in a space, in their order.
func (o Owner) NamesIn(space string) []string {
	var names []string
	for _, n := range o.Names {
		if n.Space == space {
			names = append(names, n.Name)
		}
	}
	return names
}

// Find returns the owner's first hold of a kind.
func (o Owner) Find(kind string) (Hold, bool) {
	for _, h := range o.Holds {
		if h.Spec.Kind() == kind {
			return h, true
		}
	}
	return Hold{}, false
}

func (o Owner) String() string {
	kinds := make([]string, len(o.Holds))
	for i, h := range o.Holds {
		kinds[i] = h.Spec.Kind()
	}
	return fmt.Sprintf("%s [%s] %v", o.ID, strings.Join(kinds, " "), o.Names)
}
