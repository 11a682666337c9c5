package hold

import (
	"crypto/rand"
	"encoding/base32"

	"github.com/berth-net/berth/internal/stamp"
)

// ID names an incarnation of an owner.
type ID = stamp.ID

var alphabet = base32.NewEncoding(stamp.Letters).WithPadding(base32.NoPadding)

// NewID mints an ID. It cannot fail: crypto/rand ends the program if the
// kernel has no randomness.
func NewID() ID { return ID(random(stamp.IDLen)) }

// random returns n random characters of the ID alphabet, 5 bits each.
func random(n int) string {
	raw := make([]byte, (n*5+7)/8)
	rand.Read(raw)
	return alphabet.EncodeToString(raw)[:n]
}

// ParseID checks that s has the form of an ID.
func ParseID(s string) (ID, error) {
	if err := stamp.CheckID(s); err != nil {
		return "", err
	}
	return ID(s), nil
}
