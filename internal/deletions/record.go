package deletions

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/berth-net/berth/internal/cni/scan"
	"github.com/berth-net/berth/internal/stamp"
)

// MaxSize is how long a deletion's file may be, in bytes: one block of every
// file system, which a spare file has.
const MaxSize = 4096

// version is that of the form below. Within a version, keys are only added.
const version = "1"

// Record is a deletion: which incarnations are meant, and what is known of
// them. It is about those of its key whose ADD began before it did, whatever
// link it names: that may be of an earlier ADD, or a wrong one.
type Record struct {
	Network, Container, Ifname string

	Link      string   // the host veth that prevResult names, to find what no ledger knows; "" if unknown
	Addresses []string // of prevResult, in plain text without prefix lengths
	Netns     string   // CNI_NETNS as it was given, for people
	Boot      string   // the boot's id (/proc/sys/kernel/random/boot_id)
	Started   int64    // when the DEL's plugin began, CLOCK_BOOTTIME in nanoseconds
	Cut       bool     // the plugin sets the pod's link down: Uncut takes it back if it could not; if not, the agent has to hurry
	Reason    string   // why the agent did not answer, for people
}

// Key is the attachment's.
func (r Record) Key() stamp.Key {
	return stamp.Key{Network: r.Network, ContainerID: r.Container, Ifname: r.Ifname}
}

// Why a file is no deletion.
var (
	ErrChecksum = errors.New("the checksum is wrong")
	ErrVersion  = errors.New("the version is not one that this program knows")
	errNoSum    = errors.New("it does not end with a checksum")
)

// What stands around the checksum, which is over all bytes before sumBegin.
const (
	sumBegin = `,"crc32c":"`
	sumEnd   = `"}`
	sumSize  = len(sumBegin) + 8 + len(sumEnd)
)

// encode returns the record's JSON with a newline, of at most MaxSize bytes:
// what a longer one leaves out is Reason, then Netns, then Addresses, which the
// deletion can do without.
func (r Record) encode() ([]byte, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	for _, leaveOut := range []func(){
		func() {},
		func() { r.Reason = "" },
		func() { r.Netns = "" },
		func() { r.Addresses = nil },
	} {
		leaveOut()
		if b := r.append(nil); len(b) <= MaxSize {
			return b, nil
		}
	}
	return nil, fmt.Errorf("the deletion's names are too long: a file has %d bytes", MaxSize)
}

func (r Record) append(b []byte) []byte {
	b = append(b, `{"version":`+version...)
	b = appendText(b, "network", r.Network)
	b = appendText(b, "container", r.Container)
	b = appendText(b, "ifname", r.Ifname)
	b = appendText(b, "boot", r.Boot)
	b = strconv.AppendInt(append(b, `,"started":`...), r.Started, 10)
	b = strconv.AppendBool(append(b, `,"cut":`...), r.Cut)
	if r.Link != "" {
		b = appendText(b, "link", r.Link)
	}
	if len(r.Addresses) > 0 {
		b = append(b, `,"addresses":[`...)
		for i, a := range r.Addresses {
			if i > 0 {
				b = append(b, ',')
			}
			b = scan.AppendString(b, a)
		}
		b = append(b, ']')
	}
	if r.Netns != "" {
		b = appendText(b, "netns", r.Netns)
	}
	if r.Reason != "" {
		b = appendText(b, "reason", r.Reason)
	}
	return append(seal(b), '\n')
}

// seal ends an object with its checksum.
func seal(b []byte) []byte {
	sum := crc32c(b)
	b = append(b, sumBegin...)
	for shift := 28; shift >= 0; shift -= 4 {
		b = append(b, hex[sum>>shift&15])
	}
	return append(b, sumEnd...)
}

// crc32c is CRC-32C (RFC 3720, appendix B.4), bit by bit: a deletion is short,
// and hash/crc32 takes 0.2 ms for a table at every start of the plugin.
func crc32c(b []byte) uint32 {
	sum := ^uint32(0)
	for _, c := range b {
		sum ^= uint32(c)
		for range 8 {
			sum = sum>>1 ^ 0x82f63b78&-(sum&1)
		}
	}
	return ^sum
}

func appendText(b []byte, key, text string) []byte {
	b = append(append(append(b, `,"`...), key...), `":`...)
	return scan.AppendString(b, text)
}

// check refuses what would not say which incarnations are meant.
func (r Record) check() error {
	switch {
	case r.Network == "" || r.Container == "" || r.Ifname == "":
		return fmt.Errorf("network %q, container %q, ifname %q: one of them is missing", r.Network, r.Container, r.Ifname)
	case r.Boot == "":
		return errors.New("the boot's id is missing")
	case r.Started <= 0:
		return fmt.Errorf("started at %d: not a time since the boot", r.Started)
	}
	return nil
}
