package ledger

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/fnv"
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

// FuzzRecord unseals any bytes, and sealed records with any change.
func FuzzRecord(f *testing.F) {
	f.Add([]byte{}, []byte{}, uint16(0), byte(0))
	f.Add([]byte("key"), []byte(`{"at":1}`), uint16(3), byte(1))
	f.Add([]byte("key"), seal(bucketRests, []byte("key"), []byte("{}")), uint16(9), byte(0x80))
	f.Fuzz(func(t *testing.T, key, body []byte, at uint16, flip byte) {
		var rec releasingRecord
		_ = unsealInto(bucketRests, key, body, &rec)

		sealed := seal(bucketRests, key, body)
		if got, err := unseal(bucketRests, key, sealed); err != nil || !bytes.Equal(got, body) {
			t.Fatalf("unsealed %q, %v; sealed %q", got, err, body)
		}
		if _, err := unseal(bucketOwners, key, sealed); err == nil {
			t.Fatal("unsealed in another bucket")
		}
		if _, err := unseal(bucketRests, append(bytes.Clone(key), 'x'), sealed); err == nil {
			t.Fatal("unsealed under another key")
		}
		if flip != 0 {
			sealed[int(at)%len(sealed)] ^= flip
			if _, err := unseal(bucketRests, key, sealed); !errors.Is(err, errChecksum) {
				t.Fatalf("byte changed by %#x: %v", flip, err)
			}
		}
	})
}

// FuzzOpen changes bytes of a ledger. Each patch is an offset (3 bytes, little endian, modulo
// the file's used part) and a new byte; cut says how many sectors are cut off its end.
// Nothing may panic, and a file that can be read must have the ledger's own content. With
// mend the metas' checksums are made right again, as only an attacker would do: the content
// may differ then, but a file that passes must be safe for bbolt.
func FuzzOpen(f *testing.F) {
	raw, err := os.ReadFile(golden) // the same for every run, as the corpus is
	must(f, err)
	want, err := Read(golden, testKinds)
	must(f, err)
	pages := len(raw) / pageSize
	root := uint32(order.Uint64(raw[pageHead+16:]))
	patch := func(off uint32, b byte) []byte { return []byte{byte(off), byte(off >> 8), byte(off >> 16), b} }
	f.Add([]byte{}, uint16(0), false)
	f.Add([]byte{}, uint16(3), false)
	f.Add(patch(pageHead+16, 3), uint16(0), true)                                  // another root
	f.Add(patch(pageSize+pageHead+40, 255), uint16(0), true)                       // a high water mark far out
	f.Add(patch(root*pageSize+8, flagBranch), uint16(0), false)                    // a leaf as a branch
	f.Add(patch(root*pageSize+10, 255), uint16(0), false)                          // too many elements
	f.Add(patch(root*pageSize+12, 255), uint16(0), false)                          // overflow
	f.Add(append(patch(root*pageSize+20, 0), patch(40, 1)...), uint16(0), true)    // an element elsewhere
	f.Add(append(patch(root*pageSize+27, 0x7f), patch(60, 1)...), uint16(0), true) // an element too long
	for p := uint32(2); p < uint32(pages); p++ {
		if order.Uint16(raw[p*pageSize+8:]) == flagBranch {
			f.Add(patch(p*pageSize+16, 0), uint16(0), false) // a branch's key elsewhere
			f.Add(patch(p*pageSize+20, 0), uint16(0), false) // a branch's key empty
		}
	}
	path := filepath.Join(f.TempDir(), "fuzz.db")
	f.Fuzz(func(t *testing.T, patches []byte, cut uint16, mend bool) {
		used := pages * pageSize
		spoilt := bytes.Clone(raw[:used])
		for ; len(patches) >= 4; patches = patches[4:] {
			off := int(patches[0]) | int(patches[1])<<8 | int(patches[2])<<16
			spoilt[off%used] = patches[3]
		}
		if mend {
			for i := range 2 {
				m := spoilt[i*pageSize+pageHead:]
				sum := fnv.New64a()
				sum.Write(m[:56])
				binary.NativeEndian.PutUint64(m[56:], sum.Sum64())
			}
		}
		spoilt = spoilt[:max(0, used-512*int(cut))]
		must(t, os.WriteFile(path, spoilt, 0o600))
		got, err := Read(path, testKinds)
		if err != nil || len(spoilt) == 0 {
			if mend || err == nil {
				return
			}
			var d *DamagedError
			if !errors.As(err, &d) {
				t.Fatalf("not called damage: %v", err)
			}
			return
		}
		if got.Path, got.Size = want.Path, want.Size; !mend && !reflect.DeepEqual(got, want) {
			t.Fatal("ledger now says something else, and nobody noticed")
		}
		l, err := Open(testOptions(path, newClock()))
		if err != nil {
			t.Fatalf("Read takes it, Open says %v", err)
		}
		defer l.Close()
		if err := l.Commit(t.Context(), Begin(newOwner())); err != nil {
			t.Fatalf("commit: %v", err)
		}
	})
}
