// Package attachment says what an attachment is: its key, its record in the ledger, and
// an index that finds attachments by what requests call them. Nothing here touches the
// world. What an attachment holds, and the CNI result that follows from that, is its
// mode's (internal/mode).
package attachment

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/stamp"
)

// Key is what the runtime calls an attachment.
type Key = stamp.Key

// Record is an attachment's Owner.Meta.
type Record struct {
	Key
	Netns   ns.Ref    `json:"netns"`
	Pod     *api.Pod  `json:"pod,omitempty"`
	Pool    string    `json:"pool"`
	Mode    string    `json:"mode"`
	DNS     types.DNS `json:"dns,omitzero"`
	Created time.Time `json:"created"`           // by the wall clock, for people
	Made    int64     `json:"made,omitempty"`    // the same in CLOCK_BOOTTIME, ns; 0: of an older version
	Started int64     `json:"started"`           // CLOCK_BOOTTIME of the ADD's plugin, ns
	Epoch   string    `json:"epoch"`             // in which Started and Netns mean something
	Adopted bool      `json:"adopted,omitempty"` // made of what the kernel showed: the ledger was lost
	Alike   bool      `json:"alike,omitempty"`   // adopted, as was another with the same Key, which may lack an end
}

// sort tells attachments' records from those of other owners.
type sort struct {
	Sort string `json:"sort"`
}

const attachmentSort = "attachment"

// Encode returns the record as Owner.Meta.
func (r Record) Encode() json.RawMessage {
	raw, err := json.Marshal(struct {
		sort
		Record
	}{sort{attachmentSort}, r})
	if err != nil {
		panic(fmt.Sprintf("attachment: encoding a record: %v", err)) // of plain strings and numbers
	}
	return raw
}

// Decode reads an owner's record; ok is false for owners of other sorts.
func Decode(o hold.Owner) (r Record, ok bool, err error) {
	var rec struct {
		sort
		Record
	}
	if len(o.Meta) == 0 {
		return Record{}, false, nil
	}
	if err := json.Unmarshal(o.Meta, &rec); err != nil {
		return Record{}, false, fmt.Errorf("decoding the record of %s: %w", o.ID, err)
	}
	return rec.Record, rec.Sort == attachmentSort, nil
}

// KnowsNetns reports whether the record says which network namespace the pod
// has. That of an adopted one may not have been found.
func (r Record) KnowsNetns() bool { return r.Netns.Ino != 0 }

// BeganBefore reports whether the attachment's ADD began before a request that
// began at started (CLOCK_BOOTTIME, ns) in epoch: a late DEL must not meet a
// successor with the same key.
func (r Record) BeganBefore(epoch string, started int64) bool {
	return r.Epoch != epoch || r.Started <= started
}

// YoungerThan reports whether the attachment was made less than age before now
// (CLOCK_BOOTTIME, ns) of a boot. One from an earlier boot was not.
func (r Record) YoungerThan(age time.Duration, boot string, now int64) bool {
	mine, _, _ := strings.Cut(r.Epoch, "/")
	return age > 0 && mine == boot && now-cmp.Or(r.Made, r.Started) < int64(age)
}

// BeganBeforeDeletion reports whether the attachment's ADD began before a queued
// deletion that began at started (CLOCK_BOOTTIME, ns) in a boot. now is the boot
// that the node is in: a deletion of an earlier one is older than what began in
// this one, however often it is done again.
func (r Record) BeganBeforeDeletion(boot string, started int64, now string) bool {
	switch mine, _, _ := strings.Cut(r.Epoch, "/"); mine {
	case boot:
		return r.Started <= started
	case now:
		return false
	}
	return true
}
