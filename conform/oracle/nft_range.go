package oracle

import (
	"bytes"
	"fmt"
	"math/big"
	"strings"
)

// before is the value before another one, of the same length.
func before(key []byte) []byte {
	n := new(big.Int).SetBytes(key)
	if n.Sign() == 0 {
		return key
	}
	return n.Sub(n, big.NewInt(1)).FillBytes(make([]byte, len(key)))
}

// sayFields tells a key, or a range of keys, of a type, which has several parts if it is a concatenation: `ipv4_addr . inet_service`. Each
// part fills whole registers of four bytes.
func sayFields(typ string, low, high []byte, links map[int]string) string {
	names := strings.Split(typ, " . ")
	var parts []string
	at := 0
	for i, name := range names {
		k := kind(name)
		size := sizes[k]
		if len(names) == 1 {
			size = len(low)
		}
		if size == 0 || at+size > len(low) || len(low) != len(high) || i == len(names)-1 && (at+size+3)/4*4 < len(low) {
			return fmt.Sprintf("0x%x-0x%x", low, high) // of a kind that this package does not know
		}
		parts = append(parts, sayRange(k, low[at:at+size], high[at:at+size], links))
		at += (size + 3) / 4 * 4
	}
	return strings.Join(parts, " . ")
}

// sayRange tells a value, a network, or a range.
func sayRange(k kind, low, high []byte, links map[int]string) string {
	if bytes.Equal(low, high) {
		return k.say(low, links)
	}
	mask := make([]byte, len(low))
	for i := range mask {
		mask[i] = ^(low[i] ^ high[i])
	}
	if ones, ok := prefixOf(mask); ok && (k == kindAddr4 || k == kindAddr6) && len(low) == sizes[k] && within(low, mask) {
		return network(low, len(low), ones)
	}
	return k.say(low, links) + "-" + k.say(high, links)
}
