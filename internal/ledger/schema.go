package ledger

import (
	"strings"
	"time"

	"github.com/berth-net/berth/internal/hold"
)

// Buckets. Releasing is apart from owners, so that a deletion writes a few
// bytes rather than the owner's record with its neighbours in the page.
const (
	bucketMeta       = "meta"       // "head": head
	bucketOwners     = "owners"     // ID: hold.Owner, without Releasing
	bucketReleasing  = "releasing"  // ID: releasingRecord
	bucketRests      = "rests"      // space, 0, name: restRecord
	bucketTombstones = "tombstones" // key: tombRecord
)

// dataBuckets are the buckets but meta, in the order of names.
var dataBuckets = []string{bucketOwners, bucketReleasing, bucketRests, bucketTombstones}

var headKey = []byte("head")

// Schema is the version of what stands in the buckets. It grows when an older
// program would misread the file.
const Schema = 1

// head is the one record of the meta bucket, written by every transaction.
type head struct {
	Schema int             `json:"schema"`
	Seq    uint64          `json:"seq"` // bbolt's number of the transaction that wrote it
	Epoch  Epoch           `json:"epoch"`
	Since  int64           `json:"quarantineSince,omitempty"` // Unix nanoseconds
	Until  int64           `json:"quarantineUntil,omitempty"`
	Sums   map[string]*sum `json:"sums"` // of each data bucket
}

// rest notes a quarantine, and quarantine returns it.
func (h *head) rest(q Quarantine) {
	if q != (Quarantine{}) {
		h.Since, h.Until = q.Since.UnixNano(), q.Until.UnixNano()
	}
}

func (h *head) quarantine() Quarantine {
	if h.Until == 0 {
		return Quarantine{}
	}
	return Quarantine{time.Unix(0, h.Since).UTC(), time.Unix(0, h.Until).UTC()}
}

// sum is what a bucket's records come to, so that one which is lost or there
// twice is noticed, for example by a changed byte in a page's header.
type sum struct {
	N   int    `json:"n"`
	CRC uint64 `json:"crc"` // the sum of the records' CRCs
}

func (s *sum) add(rec []byte) { s.N++; s.CRC += uint64(crcOf(rec)) }
func (s *sum) sub(rec []byte) { s.N--; s.CRC -= uint64(crcOf(rec)) }

// Times in records are Unix nanoseconds: a third of RFC 3339's bytes, and its
// parsing would be most of the time that opening takes.
type releasingRecord struct {
	At int64 `json:"at"`
}

type restRecord struct {
	Freed int64 `json:"freed"`
	Until int64 `json:"until"`
}

type tombRecord struct {
	Boot    string `json:"boot"`
	Started int64  `json:"started"`
	Until   int64  `json:"until"`
}

// keyOf is the key of a name's rest; nameOf turns it back.
func keyOf(n hold.Name) string { return n.Space + "\x00" + n.Name }

func nameOf(key string) (hold.Name, bool) {
	space, name, ok := strings.Cut(key, "\x00")
	return hold.Name{Space: space, Name: name}, ok && space != "" && name != ""
}
