package deletions

import (
	"crypto/sha256"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

const hex = "0123456789abcdef"

// Names in the folder that are no deletions'.
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

// spareName is a spare file's name. It says to people what it is for, and is
// longer than a deletion's: so there is room for that in the folder, too.
func spareName(i int) string {
	return fmt.Sprintf("%s%03d-keeps-room-for-a-deletion-on-a-full-disk", sparePrefix, i)
}

// keyName begins the names of a key's deletions.
func keyName(network, container, ifname string) string {
	sum := sha256.Sum256([]byte(network + "/" + container + "/" + ifname))
	return hexText(sum[:keyLen/2])
}

// newName is a name for a deletion, which no other has.
func (r Record) newName() (string, error) {
	random, err := randomText()
	if err != nil {
		return "", err
	}
	var started [startedLen / 2]byte
	for i := range started {
		started[i] = byte(r.Started >> (8 * (len(started) - 1 - i)))
	}
	return keyName(r.Network, r.Container, r.Ifname) + "-" + hexText(started[:]) + "-" + random + suffix, nil
}

// randomText is randomLen characters by chance.
func randomText() (string, error) {
	var random [randomLen / 2]byte
	for {
		switch n, err := unix.Getrandom(random[:], 0); {
		case err == nil && n == len(random):
			return hexText(random[:]), nil
		case err != nil && err != unix.EINTR:
			return "", fmt.Errorf("finding a name by chance: %w", err)
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

func hexText(b []byte) string {
	text := make([]byte, 0, 2*len(b))
	for _, c := range b {
		text = append(text, hex[c>>4], hex[c&15])
	}
	return string(text)
}
