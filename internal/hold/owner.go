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
// pool, a port of the node, later a sandbox's pod name. The ledger alone claims and
// frees it.
type Name struct {
	Space string `json:"space"` // which sort of name, such as "address"
	Name  string `json:"name"`  // unique in its space, such as "10.88.0.7"
}

func (n Name) String() string { return n.Space + ":" + n.Name }

// Owner is one incarnation of something that has names and holds: an
// attachment, an agent's pool, later a sandbox or a container.
//
// An owner may join the first owner that it needs, its lead, instead of standing on it, as a pod's other networks join its
// first one. It goes with its lead and ahead of it, as an owner that stands on another one does. But the lead does not
// wait for what it owes: each of its Use holds is tried once, or for a tenth of its limit, before the lead gives back its own, and the lead's
// names are free when its own holds are gone. Only the lead's record stays until it is gone. Of the owners that join
// the same lead, the one with the greatest Joined goes first.
type Owner struct {
	ID        ID              `json:"id"`
	Needs     []ID            `json:"needs,omitempty"`  // other owners, whose holds are released after this one's
	Joined    int             `json:"joined,omitempty"` // not 0: the owner joins the first one that it needs (Lead)
	Meta      json.RawMessage `json:"meta,omitempty"`   // opaque to engine and ledger
	Names     []Name          `json:"names,omitempty"`
	Ordered   bool            `json:"ordered,omitempty"`  // its Use holds are released one after the other, in reverse of acquisition
	Holds     []Hold          `json:"holds,omitempty"`    // in order of acquisition
	Before    *Extent         `json:"before,omitempty"`   // during a change: the extent of the owner's lists before it; what lies beyond is still to come
	Releasing time.Time       `json:"releasing,omitzero"` // zero: wanted; terminal once set
	Earlier   *Earlier        `json:"earlier,omitempty"`  // of a releasing owner; nil: nobody else did anything for its release
}

// Earlier is what somebody else did for an owner's release, before the program heard of it.
type Earlier struct {
	Asked time.Time `json:"asked,omitzero"` // when somebody else took the request; zero: nobody did
	Cut   time.Time `json:"cut,omitzero"`   // when somebody else cut the owner off; zero: nobody did
}

// Extent has the lengths of an owner's lists.
type Extent struct {
	Needs int `json:"needs"`
	Names int `json:"names"`
	Holds int `json:"holds"`
}

// Lead returns the owner that this one joins; "": it joins none.
func (o Owner) Lead() ID {
	if o.Joined == 0 || len(o.Needs) == 0 {
		return ""
	}
	return o.Needs[0]
}

// Settled returns the owner's holds without those that a change under way is about to give
// it: these may not be there yet, or may be taken back.
func (o Owner) Settled() []Hold {
	if o.Before == nil {
		return o.Holds
	}
	return o.Holds[:min(o.Before.Holds, len(o.Holds))]
}

// Wanted reports whether nobody has asked for the owner's release yet.
func (o Owner) Wanted() bool { return o.Releasing.IsZero() }

// Clone returns a copy with lists of its own. It shares the specs with o: nobody changes
// them once Take has answered.
func (o Owner) Clone() Owner {
	o.Needs = slices.Clone(o.Needs)
	o.Names = slices.Clone(o.Names)
	o.Holds = slices.Clone(o.Holds)
	return o
}

// Hold is one thing in the world that must be given back on its own.
type Hold struct {
	Owner ID // the owner whose stamp the thing has
	Spec  Spec
	// From is set if another owner has passed the hold to the owner whose record now has the hold.
	// From is then the other owner's ID, and equals Owner. "": the hold is the record's own.
	From ID
}

// Spec is a kind's plain struct (as a pointer). It is complete enough to release the hold
// with nothing else known. Fields may be added to it, but never renamed or removed.
type Spec interface {
	Kind() string
	// String names the thing in the kernel tools' words, such as
	// "link babcd0123456789". The text is unique among the things of the kind. The
	// spec that Find makes for a thing has the same text.
	String() string
}

// Namer is a Spec of a kind that discovers names, such as an address that a delegate, an
// operator or a cloud chooses. Names returns the names that are known so far.
type Namer interface {
	Spec
	Names() []Name
}

// Lent is a Namer whose names somebody else lends to the owner, and gives to others as soon as the hold is released: an address of an
// IPAM plugin. So the ledger lets no such name rest.
type Lent interface {
	Namer
	Lent()
}

// Unknown is the spec of a kind that this program does not have. Berth shows and keeps it.
// The release of its owner stays owed until a program that knows the kind runs.
type Unknown struct {
	Name string
	Raw  json.RawMessage
}

// Kind returns the name of the kind that wrote the spec.
func (u *Unknown) Kind() string { return u.Name }

func (u *Unknown) String() string { return fmt.Sprintf("%s %s", u.Name, u.Raw) }

// MarshalJSON returns the spec as it was read.
func (u *Unknown) MarshalJSON() ([]byte, error) { return u.Raw, nil }

// holdJSON is how a record has a hold. The hold's owner is From, if that is set, and
// otherwise the record's owner.
type holdJSON struct {
	Kind string          `json:"kind"`
	Spec json.RawMessage `json:"spec"`
	From ID              `json:"from,omitempty"`
}

// MarshalJSON writes {"kind": ..., "spec": ...}, and "from" if another owner has passed the
// hold.
func (h Hold) MarshalJSON() ([]byte, error) {
	raw, err := json.Marshal(h.Spec)
	if err != nil {
		return nil, fmt.Errorf("encoding %s hold: %w", h.Spec.Kind(), err)
	}
	return json.Marshal(holdJSON{h.Spec.Kind(), raw, h.From})
}

// UnmarshalJSON reads what MarshalJSON wrote, with each spec as *Unknown. Kinds.Decode turns
// the specs of the kinds that it knows into their own types.
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

// NamesIn returns the owner's names in a space, in the owner's order.
func (o Owner) NamesIn(space string) []string {
	var names []string
	for _, n := range o.Names {
		if n.Space == space {
			names = append(names, n.Name)
		}
	}
	return names
}

// Lent returns the names that somebody else has lent to the owner.
func (o Owner) Lent() (names []Name) {
	for _, h := range o.Holds {
		if s, ok := h.Spec.(Lent); ok {
			names = append(names, s.Names()...)
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
