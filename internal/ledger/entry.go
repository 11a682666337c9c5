package ledger

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/berth-net/berth/internal/hold"
)

// entry is an owner in memory. Nobody changes the owner in an entry once a batch has the entry.
type entry struct {
	owner hold.Owner
	size  int    // bytes of the owner's JSON
	json  []byte // the owner's JSON until it is written; nil: the file has it
}

// seal checks an owner and makes an entry of it. The entry equals the owner that reading the
// record will give, and shares nothing with the caller but the specs of kinds that do not
// discover.
func (l *Ledger) seal(o hold.Owner) (*entry, error) {
	if err := check(o); err != nil {
		return nil, err
	}
	o, err := l.own(o)
	if err != nil {
		return nil, err
	}
	record := o
	record.Releasing, record.Earlier = time.Time{}, nil // these have a record of their own
	raw, err := json.Marshal(record)
	if err != nil {
		return nil, fmt.Errorf("encoding: %w", err)
	}
	if len(raw) > MaxOwner {
		return nil, fmt.Errorf("%w: its record has %d bytes, at most %d can be written", ErrInvalid, len(raw), MaxOwner)
	}
	return &entry{o, len(raw), raw}, nil
}

// own copies an owner so that the copy shares nothing that somebody may change: it copies
// slices, Meta (in the form that a read record has), and the specs of kinds that discover,
// into which Acquire writes.
func (l *Ledger) own(o hold.Owner) (hold.Owner, error) {
	o = o.Clone()
	if len(o.Meta) == 0 {
		o.Meta = nil
	} else {
		meta, err := json.Marshal(o.Meta)
		if err != nil {
			return o, fmt.Errorf("%w: meta: %w", ErrInvalid, err)
		}
		o.Meta = meta
	}
	if len(o.Needs) == 0 {
		o.Needs = nil
	}
	if len(o.Names) == 0 {
		o.Names = nil
	}
	if len(o.Holds) == 0 {
		o.Holds = nil
	}
	if o.Wanted() {
		o.Earlier = nil
	} else {
		promiseOf(&o).mark(&o)
	}
	for i := range o.Holds {
		h := &o.Holds[i]
		h.Owner = cmp.Or(h.From, o.ID)
		k, ok := l.discover[h.Spec.Kind()]
		if !ok {
			continue
		}
		raw, err := json.Marshal(h.Spec)
		if err != nil {
			return o, fmt.Errorf("encoding %s: %w", h.Spec.Kind(), err)
		}
		spec := k.New()
		if err := json.Unmarshal(raw, spec); err != nil {
			return o, fmt.Errorf("decoding %s: %w", h.Spec.Kind(), err)
		}
		h.Spec = spec
	}
	return o, nil
}

// check returns an error if an owner cannot be written and read back.
func check(o hold.Owner) error {
	if _, err := hold.ParseID(string(o.ID)); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	for i, id := range o.Needs {
		if _, err := hold.ParseID(string(id)); err != nil {
			return fmt.Errorf("%w: needs: %w", ErrInvalid, err)
		}
		if slices.Contains(o.Needs[:i], id) {
			return fmt.Errorf("%w: needs %s twice", ErrInvalid, id)
		}
	}
	for i, n := range o.Names {
		if n.Space == "" || n.Name == "" || strings.Contains(n.Space, "\x00") ||
			!utf8.ValidString(n.Space) || !utf8.ValidString(n.Name) {
			return fmt.Errorf("%w: name %.80q", ErrInvalid, n)
		}
		if len(n.Space)+len(n.Name) > MaxName {
			return fmt.Errorf("%w: name %.80q has more than %d bytes", ErrInvalid, n, MaxName)
		}
		if slices.Contains(o.Names[:i], n) {
			return fmt.Errorf("%w: name %s appears twice", ErrInvalid, n)
		}
	}
	if b := o.Before; b != nil && (b.Needs > len(o.Needs) || b.Names > len(o.Names) || b.Holds > len(o.Holds) || min(b.Needs, b.Names, b.Holds) < 0) {
		return fmt.Errorf("%w: before %+v it has %d needs, %d names and %d holds", ErrInvalid, *b, len(o.Needs), len(o.Names), len(o.Holds))
	}
	for i, h := range o.Holds {
		if h.Spec == nil {
			return fmt.Errorf("%w: hold %d has no spec", ErrInvalid, i)
		}
	}
	return nil
}

// plain is a time as the file gives it back: wall clock, UTC, nanoseconds.
func plain(t time.Time) time.Time { return time.Unix(0, t.UnixNano()).UTC() }
