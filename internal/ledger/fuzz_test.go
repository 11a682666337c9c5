package ledger

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

// FuzzRecord unseals any bytes, and sealed records with any change.
func FuzzRecord(f *testing.F) {
	f.Add([]byte{}, []byte{}, uint16(0), byte(0))
	f.Add([]byte("key"), []byte(`{"at":1}`), uint16(3), byte(1))
	f.Add([]byte("key"), appendSealed(nil, bucketRests, "key", []byte("{}")), uint16(9), byte(0x80))
	f.Fuzz(func(t *testing.T, name, body []byte, at uint16, flip byte) {
		key := string(name)
		var rec releasingRecord
		_ = unsealInto(bucketRests, key, body, &rec)

		sealed := appendSealed(nil, bucketRests, key, body)
		if got, err := unseal(bucketRests, key, sealed); err != nil || !bytes.Equal(got, body) {
			t.Fatalf("unsealed %q, %v; sealed %q", got, err, body)
		}
		if _, err := unseal(bucketOwners, key, sealed); err == nil {
			t.Fatal("unsealed in another bucket")
		}
		if _, err := unseal(bucketRests, key+"x", sealed); err == nil {
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
// the length) and a new byte; cut says how many sectors are cut off the file's end. Nothing may
// panic, and a file that can be read must have the ledger's own content. If mend is true, the test
// makes the sectors' checksums right again, as only an attacker would do: the content may differ
// then.
func FuzzOpen(f *testing.F) {
	raw := inflate(f, golden) // the same for every run, as the corpus is
	raw = raw[:used(f, raw)+4*sectorSize]
	last := lastBatch(f, raw)
	path := filepath.Join(f.TempDir(), "fuzz.db")
	must(f, os.WriteFile(path, raw, 0o600))
	want, err := Read(path, testKinds)
	must(f, err)
	patch := func(off int, b byte) []byte { return []byte{byte(off), byte(off >> 8), byte(off >> 16), b} }
	f.Add([]byte{}, uint16(0), false)
	f.Add([]byte{}, uint16(3), false)
	f.Add([]byte{}, uint16(5), false)
	f.Add(patch(32, 200), uint16(0), true)                           // a longer snapshot
	f.Add(patch(42, 255), uint16(0), true)                           // durable further out
	f.Add(patch(sectorSize+22, 255), uint16(0), true)                // a batch without end
	f.Add(patch(sectorSize+sectorHead, 7), uint16(0), true)          // another bucket
	f.Add(patch(sectorSize+sectorHead+1, 255), uint16(0), true)      // a key without end
	f.Add(patch(last+sectorHead, 0x81), uint16(0), true)             // a drop
	f.Add(patch(last+8, 0), uint16(0), true)                         // a batch of another number
	f.Add(patch(len(raw)-2*sectorSize, sectorMark), uint16(0), true) // behind the tail
	f.Fuzz(func(t *testing.T, patches []byte, cut uint16, mend bool) {
		spoilt := bytes.Clone(raw)
		for ; len(patches) >= 4; patches = patches[4:] {
			off := int(patches[0]) | int(patches[1])<<8 | int(patches[2])<<16
			spoilt[off%len(raw)] = patches[3]
		}
		if mend {
			mendSums(spoilt)
		}
		spoilt = spoilt[:max(0, len(raw)-sectorSize*int(cut))]
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
		// A sector of the last batch may have been made zero, as a crash does it.
		torn := false
		for at := last; at < len(spoilt); at += sectorSize {
			torn = torn || isZero(spoilt[at:][:sectorSize]) && !isZero(raw[at:][:sectorSize])
		}
		if got.Path, got.Size = want.Path, want.Size; !mend && !torn && !reflect.DeepEqual(got, want) {
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

// mendSums makes all checksums of sectors right, and the chains where it can.
func mendSums(raw []byte) {
	binary.LittleEndian.PutUint32(raw[20:], fileHeadSum(raw[:sectorSize]))
	h, err := parseFileHead(raw[:sectorSize])
	if err != nil {
		return
	}
	var chain uint32
	for from := sectorSize; from < len(raw); {
		count := max(1, min(int(binary.LittleEndian.Uint32(raw[from+20:])), (len(raw)-from)/sectorSize))
		var payload []byte
		for i := range count {
			s := raw[from+i*sectorSize:][:sectorSize]
			payload = append(payload, s[sectorHead:][:min(payloadMax, int(binary.LittleEndian.Uint16(s[2:])))]...)
		}
		chain = chainOn(chain, payload)
		for i := range count {
			s := raw[from+i*sectorSize:][:sectorSize]
			if isZero(s) {
				continue
			}
			binary.LittleEndian.PutUint32(s[24:], chain)
			binary.LittleEndian.PutUint32(s[4:], sectorSum(h.id, s))
		}
		from += count * sectorSize
	}
}
