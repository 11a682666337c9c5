package ledger

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// A batch's payload is a row of changes, each of one record:
//
//	byte        the bucket's place in allBuckets; with changeDrop set if the change drops the record
//	uvarint     length of the key, and the key
//	uvarint     length of the sealed record, and the record; only if the change puts the record
const changeDrop = 0x80

// allBuckets lists the buckets. A change names its bucket by the place in this list, so the order
// must not change.
var allBuckets = []string{bucketMeta, bucketOwners, bucketReleasing, bucketRests, bucketTombstones}

// changes are a payload that is being put together. After an error the methods add nothing more;
// err is the first error.
type changes struct {
	payload []byte
	err     error
}

func (c *changes) put(bucket, key string, body []byte) {
	if c.err != nil {
		return
	}
	c.begin(bucket, key, 0)
	c.payload = binary.AppendUvarint(c.payload, uint64(recordHead+len(body)))
	c.payload = appendSealed(c.payload, bucket, key, body)
}

func (c *changes) putJSON(bucket, key string, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		if c.err == nil {
			c.err = fmt.Errorf("encoding %s %.40q: %w", bucket, key, err)
		}
		return
	}
	c.put(bucket, key, body)
}

func (c *changes) drop(bucket, key string) {
	if c.err == nil {
		c.begin(bucket, key, changeDrop)
	}
}

func (c *changes) begin(bucket, key string, flag byte) {
	c.payload = append(c.payload, byte(slices.Index(allBuckets, bucket))|flag)
	c.payload = binary.AppendUvarint(c.payload, uint64(len(key)))
	c.payload = append(c.payload, key...)
}

// How many bytes the JSON of a rest, the JSON of a releasing record, and a number in JSON have at
// most.
const (
	restBytes      = len(`{"freed":,"until":,"boot":,"at":}`) + 3*numberBytes + 10
	releasingBytes = len(`{"at":,"asked":,"cut":}`) + 3*numberBytes
	numberBytes    = len("-9223372036854775808")
)

// putBytes returns how many bytes of a payload the put of a record takes at most, if the record's
// key has `key` bytes and its JSON has `body` bytes.
func putBytes(key, body int) int { return dropBytes(key) + 3 + recordHead + body }

// dropBytes returns how many bytes of a payload the drop of a record takes at most, if the record's
// key has `key` bytes.
func dropBytes(key int) int { return 1 + 3 + key }

// tombBytes returns how many bytes a tombstone's JSON has at most.
func tombBytes(t tomb) int {
	n := len(`{"boot":"","started":,"until":}`) + 2*numberBytes
	for i := range len(t.boot) {
		if c := t.boot[i]; c == '-' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' {
			n++
		} else {
			n += len(`\u0000`)
		}
	}
	return n
}

// encode appends what a batch changes, in the order of keys.
func (c *changes) encode(b *batch) {
	for _, id := range slices.Sorted(maps.Keys(b.owners.over)) {
		slot := b.owners.over[id]
		before, _ := b.owners.base.get(id)
		wasReleasing := before != nil && !before.owner.Wanted()
		isReleasing := slot.ok && !slot.val.owner.Wanted()
		if slot.ok && slot.val.json != nil {
			c.put(bucketOwners, string(id), slot.val.json)
		} else if !slot.ok && before != nil {
			c.drop(bucketOwners, string(id))
		}
		if isReleasing && !(wasReleasing && before.owner.Releasing.Equal(slot.val.owner.Releasing)) {
			c.putJSON(bucketReleasing, string(id), promiseOf(&slot.val.owner))
		} else if wasReleasing && !isReleasing {
			c.drop(bucketReleasing, string(id))
		}
	}
	for _, n := range slices.SortedFunc(maps.Keys(b.rests.over), compareNames) {
		if slot := b.rests.over[n]; slot.ok {
			c.putJSON(bucketRests, keyOf(n), restRecord(slot.val.span))
		} else if _, ok := b.rests.base.get(n); ok {
			c.drop(bucketRests, keyOf(n))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(b.tombs.over)) {
		t := b.tombs.over[key].val // no commit drops a tombstone; only prune does
		c.putJSON(bucketTombstones, key, tombRecord{t.boot, t.started, t.until})
	}
}

// found are records of a file, by bucket and key, as far as they have been read.
type found map[string]map[string][]byte

func newFound() found {
	f := found{}
	for _, bucket := range allBuckets {
		f[bucket] = map[string][]byte{}
	}
	return f
}

// apply makes a payload's changes. In a snapshot each record is put once, and none is dropped.
func (f found) apply(payload []byte, snapshot bool) error {
	for rest := payload; len(rest) > 0; {
		what := rest[0]
		bucket := int(what &^ changeDrop)
		if bucket >= len(allBuckets) {
			return damaged("a change of bucket %d", bucket)
		}
		name := allBuckets[bucket]
		key, after, ok := cutField(rest[1:])
		if !ok || len(key) == 0 {
			return damaged("a change of bucket %s is cut off", name)
		}
		old, had := f[name][string(key)]
		if what&changeDrop != 0 {
			if rest = after; !had || snapshot {
				return damaged("record %.40q of bucket %s goes, and is not there", key, name)
			}
			delete(f[name], string(key))
			continue
		}
		rec, after, ok := cutField(after)
		if !ok {
			return damaged("record %.40q of bucket %s is cut off", key, name)
		}
		if snapshot && had {
			return damaged("record %.40q of bucket %s is there twice (%d and %d bytes)", key, name, len(old), len(rec))
		}
		f[name][string(key)] = rec
		rest = after
	}
	return nil
}

// cutField cuts a length, and a field of that length, off b.
func cutField(b []byte) (field, rest []byte, ok bool) {
	n, width := binary.Uvarint(b)
	if width <= 0 || n > uint64(len(b)-width) {
		return nil, nil, false
	}
	end := width + int(n)
	return b[width:end:end], b[end:], true
}
