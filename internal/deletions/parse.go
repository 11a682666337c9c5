package deletions

import (
	"bytes"
	"fmt"
	"strconv"

	"github.com/berth-net/berth/internal/cni/scan"
)

// parse reads what encode has written, with any number of blanks behind it, because a spare
// file is longer than its deletion. It ignores keys that it does not know.
func parse(raw []byte) (Record, error) {
	if len(raw) > MaxSize {
		return Record{}, fmt.Errorf("it has %d bytes; a deletion has at most %d", len(raw), MaxSize)
	}
	raw = bytes.TrimRight(raw, " \n")
	if err := checkSum(raw); err != nil {
		return Record{}, err
	}
	fields, err := scan.Object(raw)
	if err != nil {
		return Record{}, err
	}
	if v := fields.Get("version"); string(v) != version {
		return Record{}, fmt.Errorf("version %.20q: %w", v, ErrVersion)
	}
	var r Record
	for _, f := range []struct {
		key string
		to  *string
	}{
		{"network", &r.Network}, {"container", &r.Container}, {"ifname", &r.Ifname}, {"boot", &r.Boot},
		{"link", &r.Link}, {"netns", &r.Netns}, {"reason", &r.Reason},
	} {
		if *f.to, err = fields.Text(f.key); err != nil {
			return Record{}, fmt.Errorf("%s: %w", f.key, err)
		}
	}
	if r.Started, err = strconv.ParseInt(string(fields.Get("started")), 10, 64); err != nil {
		return Record{}, fmt.Errorf("started: %w", err)
	}
	switch cut := fields.Get("cut"); string(cut) {
	case "true":
		r.Cut = true
	case "false":
	default:
		return Record{}, fmt.Errorf("cut is %.20q, not true or false", cut)
	}
	r.Again = string(fields.Get("again")) == "true" // absent if it is false
	if r.Addresses, err = texts(fields.Get("addresses")); err != nil {
		return Record{}, fmt.Errorf("addresses: %w", err)
	}
	return r, r.check()
}

// checkSum checks the checksum that raw ends with.
func checkSum(raw []byte) error {
	at := len(raw) - sumSize
	if at < 0 || string(raw[at:at+len(sumBegin)]) != sumBegin || string(raw[len(raw)-len(sumEnd):]) != sumEnd {
		return errNoSum
	}
	sum, err := strconv.ParseUint(string(raw[at+len(sumBegin):len(raw)-len(sumEnd)]), 16, 32)
	if err != nil {
		return errNoSum
	}
	if uint32(sum) != crc32c(raw[:at]) {
		return ErrChecksum
	}
	return nil
}

// texts returns the strings of a JSON array; none if there is no array.
func texts(raw []byte) ([]string, error) {
	if raw == nil {
		return nil, nil
	}
	elements, err := scan.Array(raw)
	if err != nil {
		return nil, err
	}
	var all []string
	for _, e := range elements {
		s, err := scan.String(e)
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}
