package ledger

import (
	"encoding/binary"
	"encoding/hex"
	"slices"
	"strings"
)

// A key in a packed map is either
//
//	byte 0, uvarint length, and the key; or
//	byte n, byte length, and length bytes: the key has these bytes as hexadecimal digits, and the
//	n-th text of a list (packed.around) around the digits.
const (
	leastDigits = 16  // the fewest digits of a number that is kept as bytes
	maxAround   = 255 // texts in the list
)

// appendKey appends a key to dst.
func (p *packed[V]) appendKey(dst []byte, key string) []byte {
	from, to := digits(key)
	if to-from >= leastDigits && to-from < 2*256 && !strings.Contains(key, "\x00") {
		if n := p.textAround(key[:from] + "\x00" + key[to:]); n > 0 {
			dst = append(dst, byte(n), byte((to-from)/2))
			dst, _ = hex.AppendDecode(dst, []byte(key[from:to])) // digits has seen that it can be decoded
			return dst
		}
	}
	dst = append(dst, 0)
	dst = binary.AppendUvarint(dst, uint64(len(key)))
	return append(dst, key...)
}

// textAround returns the place of a text in the list, counted from 1; 0 if the list is full.
func (p *packed[V]) textAround(text string) int {
	i := slices.Index(p.around, text)
	if i < 0 && len(p.around) < maxAround {
		i = len(p.around)
		p.around = append(p.around, text)
	}
	return i + 1
}

// digits returns the place of the longest row of hexadecimal digits in a key, cut to an even
// length.
func digits(key string) (from, to int) {
	for i := 0; i < len(key); i++ {
		begin := i
		for i < len(key) && ('0' <= key[i] && key[i] <= '9' || 'a' <= key[i] && key[i] <= 'f') {
			i++
		}
		if n := (i - begin) &^ 1; n > to-from {
			from, to = begin, begin+n
		}
	}
	return from, to
}

// keySize returns how many bytes the key of a record takes.
func keySize(record []byte) int {
	if record[0] != 0 {
		return 2 + int(record[1])
	}
	n, width := binary.Uvarint(record[1:])
	return 1 + width + int(n)
}

// cutKey appends the key of a record to dst, and returns what is behind it in the record.
func cutKey(dst, record []byte, around []string) (key, rest []byte) {
	size := keySize(record)
	if record[0] != 0 {
		before, after, _ := strings.Cut(around[record[0]-1], "\x00")
		dst = hex.AppendEncode(append(dst, before...), record[2:size])
		return append(dst, after...), record[size:]
	}
	_, width := binary.Uvarint(record[1:])
	return append(dst, record[1+width:size]...), record[size:]
}

// sizeOf returns how many bytes a record takes.
func sizeOf(record []byte) int { return keySize(record) + 2 + len(bodyOf(record)) }

// bodyOf returns the body of a record.
func bodyOf(record []byte) []byte {
	b := record[keySize(record):]
	return b[2 : 2+int(binary.LittleEndian.Uint16(b))]
}
