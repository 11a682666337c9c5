package oracle

import (
	"bytes"
	"slices"
	"testing"
)

// FuzzSay tells whatever stands for values: two different ones of a kind are never told in the same words.
func FuzzSay(f *testing.F) {
	kinds := append(slices.Collect(func(yield func(kind) bool) {
		for k := range sizes {
			if !yield(k) {
				return
			}
		}
	}), kindHost, kindInteger, kindHex)
	slices.Sort(kinds)
	links := map[int]string{1: "lo", 2: "eth0"}
	f.Add([]byte("lo\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"), []byte("lo"))
	f.Add([]byte{10, 0, 0, 1}, []byte{1, 0, 0, 10})
	f.Add([]byte{6}, []byte{0, 6})
	f.Add([]byte("eth*"), []byte("eth"))
	f.Add([]byte{1, 0, 0, 0}, []byte{1})
	f.Fuzz(func(t *testing.T, a, b []byte) {
		if bytes.Equal(a, b) {
			return
		}
		for _, k := range kinds {
			if size := sizes[k]; size == 0 && len(a) != len(b) {
				continue // of a field, which has a length
			}
			if x, y := k.say(a, links), k.say(b, links); x == y {
				t.Errorf("%s: %x and %x are both told as %s", k, a, b, x)
			}
		}
	})
}

// FuzzFields tells whatever stands for a key of a set, and for a rule's comment.
func FuzzFields(f *testing.F) {
	f.Add("ipv4_addr . inet_service", []byte{10, 0, 0, 1, 0, 80, 0, 0}, []byte{10, 0, 0, 9, 0, 90, 0, 0})
	f.Add("inet_proto", []byte{6}, []byte{7})
	f.Add(" . ", []byte{}, []byte{1})
	f.Fuzz(func(t *testing.T, typ string, low, high []byte) {
		if sayFields(typ, low, high, nil) == "" || (nftRule{note: low}).comment() == "" && len(low) > 0 {
			t.Errorf("%q %x %x: nothing is told", typ, low, high)
		}
	})
}
