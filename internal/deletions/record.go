package deletions

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/berth-net/berth/internal/cni/scan"
	"github.com/berth-net/berth/internal/stamp"
)

// MaxSize is the largest size of a deletion's file, in bytes, and the size of a spare file:
// one block of every file system.
const MaxSize = 4096

// version is the version of the form below. Within a version one may only add keys.
const version = "1"

// Record is a deletion: which incarnations it means, and what the plugin knows of them. The
// deletion is about those incarnations of its key whose ADD began before the DEL, whatever link the
// deletion names: the link may be of an earlier ADD, or a wrong one.
type Record struct {
	Network, Container, Ifname string

	Link      string   // the host veth that prevResult names, to find what no ledger knows; "" if unknown
	Addresses []string // of prevResult, in plain text without prefix lengths
	Netns     string   // CNI_NETNS as it was given, for people
	Boot      string   // the boot's id (/proc/sys/kernel/random/boot_id)
	Started   int64    // when the DEL's process began, CLOCK_BOOTTIME in nanoseconds
	Cut       bool     // the plugin sets the pod's link down; if it cannot, Correct clears Cut, and the agent has to hurry
	Again     bool     // the plugin told the runtime to repeat DEL, so that the runtime still needs the plugin
	Reason    string   // why the agent did not answer, for people
}

// Key returns the attachment's key.
func (r Record) Key() stamp.Key {
	return stamp.Key{Network: r.Network, ContainerID: r.Container, Ifname: r.Ifname}
}

// Why a file is no deletion.
var (
	ErrChecksum = errors.New("the checksum is wrong")
	ErrVersion  = errors.New("this program does not know its version")
	errNoSum    = errors.New("it does not end with a checksum")
)

// These texts stand around the checksum, which is over all bytes before sumBegin.
const (
	sumBegin = `,"crc32c":"`
	sumEnd   = `"}`
	sumSize  = len(sumBegin) + 8 + len(sumEnd)
)

// encode returns the record's JSON with a newline, in at most MaxSize bytes. If the record is
// too long, encode leaves out Reason, then Netns, then Addresses, until it fits: the deletion
// can do without them.
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
	return nil, fmt.Errorf("the deletion's names are too long: a file has room for %d bytes", MaxSize)
}

func (r Record) append(b []byte) []byte {
	b = append(b, `{"version":`+version...)
	b = appendText(b, "network", r.Network)
	b = appendText(b, "container", r.Container)
	b = appendText(b, "ifname", r.Ifname)
	b = appendText(b, "boot", r.Boot)
	b = strconv.AppendInt(append(b, `,"started":`...), r.Started, 10)
	b = strconv.AppendBool(append(b, `,"cut":`...), r.Cut)
	if r.Again {
		b = append(b, `,"again":true`...)
	}
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

// crc32c computes the CRC-32C (RFC 3720, appendix B.4) bit by bit. A deletion is short, and
// hash/crc32 would take 0.2 ms for a table at every start of the plugin.
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

// check refuses a record that does not say which incarnations it means.
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
