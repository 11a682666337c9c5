package ledger

import (
	"strings"

	"github.com/berth-net/berth/internal/hold"
)

// Buckets, with the keys and values of their records. The time of releasing has a bucket of
// its own, so that a deletion writes a few bytes, and not the page with the owner's record
// and its neighbours.
const (
	bucketMeta       = "meta"       // "head": head
	bucketOwners     = "owners"     // ID: hold.Owner, without Releasing
	bucketReleasing  = "releasing"  // ID: releasingRecord
	bucketRests      = "rests"      // space, 0, name: restRecord
	bucketTombstones = "tombstones" // key: tombRecord
)

// dataBuckets are all buckets except meta, sorted by name.
var dataBuckets = []string{bucketOwners, bucketReleasing, bucketRests, bucketTombstones}

var headKey = []byte("head")

// Schema is the version of the buckets' content. It grows when an older program would
// misread the file.
const Schema = 1

// head is the only record of the meta bucket. Every transaction writes it.
type head struct {
	Schema int             `json:"schema"`
	Seq    uint64          `json:"seq"` // bbolt's number of the transaction that wrote it
	Epoch  Epoch           `json:"epoch"`
	First  *First          `json:"first,omitempty"`           // nil: an earlier agent began the ledger, or an earlier version
	Opened *opening        `json:"opened,omitempty"`          // by the boot that wrote the head; nil: the boot is not known
	Since  int64           `json:"quarantineSince,omitempty"` // these four are the quarantine's span
	Until  int64           `json:"quarantineUntil,omitempty"`
	In     uint32          `json:"quarantineBoot,omitempty"`
	At     int64           `json:"quarantineAt,omitempty"`
	Sums   map[string]*sum `json:"sums"` // of each data bucket
}

// rest writes a quarantine into the head.
func (h *head) rest(q Quarantine, in spans) {
	if q != (Quarantine{}) {
		s := in.of(q.Since, q.Until)
		h.Since, h.Until, h.In, h.At = s.Freed, s.Until, s.Boot, s.At
	}
}

func (h *head) quarantine(read reading) Quarantine {
	if h.Until == 0 {
		return Quarantine{}
	}
	since, until := read(span{h.Since, h.Until, h.In, h.At})
	return Quarantine{since, until}
}

// sum counts and sums up a bucket's records. It shows when a record is lost or there twice,
// for example because of a changed byte in a page's header.
type sum struct {
	N   int    `json:"n"`
	CRC uint64 `json:"crc"` // the sum of the records' CRCs
}

func (s *sum) add(rec []byte) { s.N++; s.CRC += uint64(crcOf(rec)) }
func (s *sum) sub(rec []byte) { s.N--; s.CRC -= uint64(crcOf(rec)) }

// Times in records are Unix nanoseconds. They take a third of the bytes of RFC 3339, whose
// parsing would be most of the time that opening a ledger takes.
type releasingRecord struct {
	At int64 `json:"at"`
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

// keyOf returns the key of a name's rest; nameOf is its inverse.
func keyOf(n hold.Name) string { return n.Space + "\x00" + n.Name }

func nameOf(key string) (hold.Name, bool) {
	space, name, ok := strings.Cut(key, "\x00")
	return hold.Name{Space: space, Name: name}, ok && space != "" && name != ""
}
