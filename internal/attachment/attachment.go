// Package attachment says what an attachment is. It has the key of an attachment, its
// record in the ledger, and an index that finds attachments by what requests call them. It
// touches nothing in the world. The mode of an attachment (internal/mode) says what it
// holds, and which CNI result follows from that.
package attachment

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni/netconf"
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
	Made    int64     `json:"made,omitempty"`    // the same time in CLOCK_BOOTTIME, ns; 0: an older version wrote the record
	Started int64     `json:"started"`           // when the last ADD's plugin began, CLOCK_BOOTTIME, ns
	Epoch   string    `json:"epoch"`             // the boot and network namespace in which Started and Netns mean something
	Adopted bool      `json:"adopted,omitempty"` // the agent made the record from what the kernel showed, because the ledger lacked it
	Alike   bool      `json:"alike,omitempty"`   // adopted beside another with the same Key, which may lack its end
	// Former says that a former CNI of the node made the attachment, and that `berth adopt` has found it (internal/attachment/adopt). Its
	// Started is 0: whatever asks for its release began later.
	Former bool `json:"former,omitempty"`
	// First is the pod's first attachment, which this further one joins (hold.Owner.Joined). "": the attachment is a first one. Only first
	// ones are what a runtime has asked for.
	First hold.ID `json:"first,omitempty"`
	// Called is what the pod's status calls the network of a first one, unless it calls it Network.
	Called string `json:"called,omitempty"`
	// PrevResult is the result of the plugins ahead, in the newest version, for an attachment of mode chained; nil for others.
	PrevResult json.RawMessage `json:"prevResult,omitempty"`
	// Networks says, for a first one, which further networks its pod may have; nil: the configuration has not said it.
	Networks *netconf.Networks `json:"networks,omitempty"`
}

// Further reports whether the attachment is of one of its pod's further networks: it joins the first one, and goes with it.
func (r Record) Further() bool { return r.First != "" }

// sort tells the records of attachments from the records of other owners.
type sort struct {
	Sort string `json:"sort"`
}

const attachmentSort = "attachment"

// colon is in the Network of each further attachment's key, and in no network's name that a runtime knows (CNI 1.1, section 1).
const colon = ":"

// FurtherNetwork returns the Network of the key of a further attachment, of a network with a label: a definition's namespace/name, or the
// name in a configuration. The key is in the stamp of the attachment's link, where it may have no slash.
func FurtherNetwork(label string) string {
	namespace, name, ok := strings.Cut(label, "/")
	if !ok {
		namespace, name = "", label
	}
	return namespace + colon + name
}

// IsFurther reports whether a key is a further attachment's.
func IsFurther(k Key) bool { return strings.Contains(k.Network, colon) }

// Label is what the pod's status calls the network.
func (r Record) Label() string {
	if IsFurther(r.Key) {
		return strings.TrimPrefix(strings.Replace(r.Network, colon, "/", 1), "/")
	}
	return cmp.Or(r.Called, r.Network)
}

// Encode returns the record as Owner.Meta.
func (r Record) Encode() json.RawMessage {
	raw, err := json.Marshal(struct {
		sort
		Record
	}{sort{attachmentSort}, r})
	if err != nil {
		panic(fmt.Sprintf("attachment: encoding a record: %v", err)) // cannot happen: a record has only plain strings and numbers
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

// KnowsNetns reports whether the record says which network namespace the pod has. The
// record of an adopted attachment does not if the namespace could not be found.
func (r Record) KnowsNetns() bool { return r.Netns.Ino != 0 }

// BeganBefore reports whether the attachment's ADD began no later than a request that began at the
// time `started` (CLOCK_BOOTTIME, ns) in the epoch `epoch`. This check keeps a late DEL from
// releasing a successor with the same key.
func (r Record) BeganBefore(epoch string, started int64) bool {
	return r.Epoch != epoch || r.Started <= started
}

// YoungerThan reports whether the attachment was made less than `age` before the time `now`
// (CLOCK_BOOTTIME, ns) of the boot `boot`. It is false for an attachment of an earlier boot.
func (r Record) YoungerThan(age time.Duration, boot string, now int64) bool {
	mine, _, _ := strings.Cut(r.Epoch, "/")
	return age > 0 && mine == boot && now-cmp.Or(r.Made, r.Started) < int64(age)
}

// BeganBeforeDeletion reports whether the attachment's ADD began no later than a queued
// deletion that began at the time `started` (CLOCK_BOOTTIME, ns) in the boot `boot`. now is the
// node's present boot: a deletion of an earlier boot is older than each ADD of the present one,
// however often the deletion is done again.
func (r Record) BeganBeforeDeletion(boot string, started int64, now string) bool {
	switch mine, _, _ := strings.Cut(r.Epoch, "/"); mine {
	case boot:
		return r.Started <= started
	case now:
		return false
	}
	return true
}
