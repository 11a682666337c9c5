package deletions

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const hex = "0123456789abcdef"

// Names and beginnings of names in the folder that are no deletions', and the suffix of
// deletions' names.
const (
	damagedName = "damaged"
	tmpPrefix   = "tmp-"
	sparePrefix = "spare-"
	suffix      = ".json"
)

// Lengths of the parts of a deletion's name, in characters.
const (
	keyLen     = 16
	startedLen = 16
	randomLen  = 8
	nameLen    = keyLen + 1 + startedLen + 1 + randomLen + len(suffix)
)

// spareName returns the name of a spare file. The name tells people what the file is for. It
// is longer than a deletion's name, so that the folder has room for that name, too.
func spareName(i int) string {
	return fmt.Sprintf("%s%03d-keeps-room-for-a-deletion-on-a-full-disk", sparePrefix, i)
}

// spareNumber returns the number of the spare file with this name; false if no spare file has
// the name.
func spareNumber(name string) (i int, ok bool) {
	digits, _, _ := strings.Cut(strings.TrimPrefix(name, sparePrefix), "-")
	i, err := strconv.Atoi(digits)
	return i, err == nil && i >= 0 && name == spareName(i)
}

// keyName returns the beginning of the names of a key's deletions: the key's FNV-1a hash of
// 64 bits. If two keys have the same hash, that does no harm, because the record says whose a
// deletion is. crypto/sha256 would take longer for its start than for the hash.
func keyName(network, container, ifname string) string {
	hash := uint64(14695981039346656037)
	for _, c := range []byte(network + "/" + container + "/" + ifname) {
		hash = (hash ^ uint64(c)) * 1099511628211
	}
	return hexText(hash)
}

// newName returns a name for a deletion that no other deletion has.
func (r Record) newName() (string, error) {
	random, err := randomText()
	if err != nil {
		return "", err
	}
	return keyName(r.Network, r.Container, r.Ifname) + "-" + hexText(uint64(r.Started)) + "-" + random + suffix, nil
}

// randomText returns randomLen random hexadecimal digits.
func randomText() (string, error) {
	n, err := random()
	return hexText(uint64(n))[16-randomLen:], err
}

func random() (uint32, error) {
	var b [4]byte
	for {
		switch n, err := unix.Getrandom(b[:], 0); {
		case err == nil && n == len(b):
			return binary.NativeEndian.Uint32(b[:]), nil
		case err != nil && err != unix.EINTR:
			return 0, fmt.Errorf("choosing a random name: %w", err)
		}
	}
}

// isName reports whether a name has the form of a deletion's.
func isName(name string) bool {
	if len(name) != nameLen || !strings.HasSuffix(name, suffix) {
		return false
	}
	for i, c := range []byte(name[:nameLen-len(suffix)]) {
		if dash := i == keyLen || i == keyLen+1+startedLen; dash != (c == '-') || !dash && strings.IndexByte(hex, c) < 0 {
			return false
		}
	}
	return true
}

// hexText returns n as 16 hexadecimal digits.
func hexText(n uint64) string {
	text := make([]byte, 0, 16)
	for shift := 60; shift >= 0; shift -= 4 {
		text = append(text, hex[n>>shift&15])
	}
	return string(text)
}
