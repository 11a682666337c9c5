package hold

import (
	"crypto/rand"
	"encoding/base32"
	"fmt"
)

// ID names an incarnation of an owner: 50 random bits as 10 characters of
// lower-case base32 (RFC 4648 alphabet, no padding). It is minted when the
// owner is taken and never used again, so that a late release cannot meet a
// successor of the same pod name, container id or address.
type ID string

// IDLen is the number of characters in an ID.
const IDLen = 10

var alphabet = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// NewID mints an ID. It cannot fail: crypto/rand ends the program if the
// kernel has no randomness.
func NewID() ID { return ID(random(IDLen)) }

// random returns n random characters of the ID alphabet, 5 bits each.
func random(n int) string {
	raw := make([]byte, (n*5+7)/8)
	rand.Read(raw)
	return alphabet.EncodeToString(raw)[:n]
}

// ParseID checks that s has the form of an ID.
func ParseID(s string) (ID, error) {
	if len(s) != IDLen {
		return "", fmt.Errorf("id %.40q: want %d characters, have %d", s, IDLen, len(s))
	}
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '2' || c > '7') {
			return "", fmt.Errorf("id %q: character %q is not one of a-z, 2-7", s, c)
		}
	}
	return ID(s), nil
}
