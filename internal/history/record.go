package history

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/berth-net/berth/api"
)

const (
	// version begins each line. A reader leaves out lines of versions that it does not know.
	version = "1"
	// maxLine is how long a line may be, in bytes.
	maxLine = 16 << 10
	// maxText is how many bytes of an error's text a record keeps, and maxList how many elements of
	// a list.
	maxText, maxList = 512, 16
)

// record is what a line has.
type record struct {
	Past api.Past `json:"past"`
	// Boot and At are when the attachment ended by CLOCK_BOOTTIME (ns), which nobody sets.
	Boot string `json:"boot"`
	At   int64  `json:"at"`
	// Corrects says that an earlier record of the same attachment does not count.
	Corrects bool `json:"corrects,omitempty"`
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encode returns a record's line. It uses buf for its work.
func encode(buf *bytes.Buffer, r record) ([]byte, error) {
	r.Past = bounded(r.Past)
	buf.Reset()
	buf.WriteString(head)
	if err := json.NewEncoder(buf).Encode(r); err != nil { // the encoder ends the JSON with a newline
		return nil, err
	}
	if buf.Len() > maxLine {
		return nil, fmt.Errorf("a record of %d bytes is too long", buf.Len())
	}
	line := bytes.Clone(buf.Bytes())
	sum := checksum(line[len(head) : len(line)-1])
	copy(line[len(version)+1:], sum[:])
	return line, nil
}

// checksum returns the Castagnoli CRC-32 of a record's JSON in lower-case hexadecimal digits, as it
// stands in the record's line.
func checksum(text []byte) (digits [8]byte) {
	var sum [4]byte
	binary.BigEndian.PutUint32(sum[:], crc32.Checksum(text, castagnoli))
	hex.Encode(digits[:], sum[:])
	return digits
}

// head is what a line begins with, with room for the checksum.
const head = version + " 00000000 "

// bounded returns p with texts and lists that are not too long.
func bounded(p api.Past) api.Past {
	p.Failed, p.CutError = short(p.Failed), short(p.CutError)
	p.Attachment.Owed = nil
	p.Attachment.Addresses = p.Attachment.Addresses[:min(len(p.Attachment.Addresses), maxList)]
	p.Attachment.HostPorts = p.Attachment.HostPorts[:min(len(p.Attachment.HostPorts), maxList)]
	p.Holds = p.Holds[:min(len(p.Holds), maxList)]
	long := func(h api.PastHold) bool { return len(h.What) > maxText || len(h.Error) > maxText }
	if slices.ContainsFunc(p.Holds, long) {
		p.Holds = slices.Clone(p.Holds) // the holds are the caller's
		for i := range p.Holds {
			h := &p.Holds[i]
			h.What, h.Error = short(h.What), short(h.Error)
		}
	}
	return p
}

// short returns the beginning of a text.
func short(s string) string {
	if len(s) <= maxText {
		return s
	}
	s = s[:maxText]
	for len(s) > 0 {
		if r, n := utf8.DecodeLastRuneInString(s); r != utf8.RuneError || n > 1 {
			break
		}
		s = s[:len(s)-1]
	}
	return s + "..."
}

var (
	errDamaged = errors.New("the line is damaged")
	errVersion = errors.New("the line is of another version")
)

// text returns the JSON of a line, which comes without its newline, if the line's version is known
// and its checksum fits.
func text(line []byte) ([]byte, error) {
	v, rest, ok := bytes.Cut(line, []byte(" "))
	if n, err := strconv.ParseUint(string(v[:min(len(v), 20)]), 10, 32); !ok || err != nil || n == 0 {
		return nil, errDamaged
	}
	if string(v) != version {
		return nil, errVersion
	}
	sum, rest, _ := bytes.Cut(rest, []byte(" "))
	if want := checksum(rest); !bytes.Equal(sum, want[:]) { // digits of another case are damage, too
		return nil, errDamaged
	}
	return rest, nil
}

// Now is a moment on each of the clocks that measure a record's age.
type Now struct {
	Wall     time.Time
	Boot     string
	Boottime int64 // CLOCK_BOOTTIME, ns
}

// ending is when an attachment ended.
type ending struct {
	wall time.Time
	boot string
	at   int64 // CLOCK_BOOTTIME, ns
}

func (r record) ending() ending {
	e := ending{boot: r.Boot, at: r.At}
	if r.Past.Ended != nil {
		e.wall = *r.Past.Ended
	}
	return e
}

// age returns how long ago an attachment ended. Within a boot age uses a clock that nobody can set.
// An attachment of an earlier boot ended before this boot began.
func (n Now) age(e ending) time.Duration {
	if e.boot == n.Boot {
		return time.Duration(n.Boottime - e.at)
	}
	return max(time.Duration(n.Boottime), n.Wall.Sub(e.wall))
}
