package ledger

import (
	"strings"
	"time"

	"github.com/berth-net/berth/internal/hold"
)

// Buckets, with the keys and values of their records. The time of releasing has a bucket of
// its own, so that a deletion writes a few bytes, and not the owner's record.
const (
	bucketMeta       = "meta"       // "head": head
	bucketOwners     = "owners"     // ID: hold.Owner, without Releasing and Earlier
	bucketReleasing  = "releasing"  // ID: releasingRecord
	bucketRests      = "rests"      // space, 0, name: restRecord
	bucketTombstones = "tombstones" // key: tombRecord
)

const headKey = "head"

// Schema is the version of the buckets' content. It grows when an older program would
// misread the file. A new field of a record needs no new Schema. Such a field vanishes when an
// older program, which does not know the field, changes the record or writes the file anew.
const Schema = 1

// head is the only record of the meta bucket. A transaction that changes it writes it.
type head struct {
	Schema int             `json:"schema"`
	Seq    uint64          `json:"seq,omitempty"` // number of the transaction that wrote it; version 1 of the file only
	Epoch  Epoch           `json:"epoch"`
	First  *First          `json:"first,omitempty"`           // nil: an earlier agent began the ledger, or an earlier version
	Opened *opening        `json:"opened,omitempty"`          // when the boot that wrote the head first opened the ledger; nil: not known
	Since  int64           `json:"quarantineSince,omitempty"` // these four are the quarantine's span
	Until  int64           `json:"quarantineUntil,omitempty"`
	In     uint32          `json:"quarantineBoot,omitempty"`
	At     int64           `json:"quarantineAt,omitempty"`
	Sums   map[string]*sum `json:"sums,omitempty"` // of each data bucket; version 1 of the file only
}

// rest writes a quarantine into the head.
func (h *head) rest(q kept) {
	h.Since, h.Until, h.In, h.At = q.span.Freed, q.span.Until, q.span.Boot, q.span.At
}

func (h *head) quarantine(read reading) kept {
	if h.Until == 0 {
		return kept{}
	}
	s := span{h.Since, h.Until, h.In, h.At}
	since, until := read(s)
	return kept{Quarantine{since, until}, s}
}

// Times in records are Unix nanoseconds. They take a third of the bytes of RFC 3339, whose
// parsing would be most of the time that opening a ledger takes.
type releasingRecord struct {
	At    int64 `json:"at"`
	Asked int64 `json:"asked,omitempty"` // hold.Earlier; 0: nobody else did it
	Cut   int64 `json:"cut,omitempty"`
}

// promised returns the record of a release that is promised at a time.
func promised(at time.Time, earlier hold.Earlier) releasingRecord {
	return releasingRecord{at.UnixNano(), nanos(earlier.Asked), nanos(earlier.Cut)}
}

// promiseOf returns the record of the release of an owner that is releasing.
func promiseOf(o *hold.Owner) releasingRecord {
	if o.Earlier == nil {
		return promised(o.Releasing, hold.Earlier{})
	}
	return promised(o.Releasing, *o.Earlier)
}

// mark gives an owner what the record of its release says.
func (r releasingRecord) mark(o *hold.Owner) {
	o.Releasing = time.Unix(0, r.At).UTC()
	o.Earlier = nil
	if r.Asked != 0 || r.Cut != 0 {
		o.Earlier = &hold.Earlier{Asked: timeOf(r.Asked), Cut: timeOf(r.Cut)}
	}
}

// nanos returns a time as records have it; timeOf is its inverse. The zero time is 0.
func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

func timeOf(nanos int64) time.Time {
	if nanos == 0 {
		return time.Time{}
	}
	return time.Unix(0, nanos).UTC()
}

// restRecord is a span, with the names that its fields have in the file.
type restRecord struct {
	Freed int64  `json:"freed"`
	Until int64  `json:"until"`
	Boot  uint32 `json:"boot,omitempty"`
	At    int64  `json:"at,omitempty"`
}

type tombRecord struct {
	Boot    string `json:"boot"`
	Started int64  `json:"started"`
	Until   int64  `json:"until"`
}

// keyOf returns the key of a name's rest, which has keyLen bytes; nameOf is its inverse.
func keyOf(n hold.Name) string { return n.Space + "\x00" + n.Name }

func keyLen(n hold.Name) int { return len(n.Space) + 1 + len(n.Name) }

func nameOf(key string) (hold.Name, bool) {
	space, name, ok := strings.Cut(key, "\x00")
	return hold.Name{Space: space, Name: name}, ok && space != "" && name != ""
}
