package ledger

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	bolt "go.etcd.io/bbolt"
)

// writeBatch writes a batch's changes into the buckets, in the order of keys, and the new
// head.
func writeBatch(tx *bolt.Tx, next *head, b *batch) error {
	owners, releasing := into(tx, next, bucketOwners), into(tx, next, bucketReleasing)
	for _, id := range slices.Sorted(maps.Keys(b.owners.over)) {
		slot := b.owners.over[id]
		before := b.owners.base[id]
		wasReleasing := before != nil && !before.owner.Wanted()
		isReleasing := slot.ok && !slot.val.owner.Wanted()
		if slot.ok && slot.val.json != nil {
			owners.put(string(id), slot.val.json)
		} else if !slot.ok && before != nil {
			owners.drop(string(id))
		}
		if isReleasing && !(wasReleasing && before.owner.Releasing.Equal(slot.val.owner.Releasing)) {
			releasing.putJSON(string(id), releasingRecord{slot.val.owner.Releasing.UnixNano()})
		} else if wasReleasing && !isReleasing {
			releasing.drop(string(id))
		}
	}
	rests := into(tx, next, bucketRests)
	for _, n := range slices.SortedFunc(maps.Keys(b.rests.over), compareNames) {
		if slot := b.rests.over[n]; slot.ok {
			rests.putJSON(keyOf(n), restRecord(b.spans.of(slot.val.Freed, slot.val.Until)))
		} else if _, ok := b.rests.base[n]; ok {
			rests.drop(keyOf(n))
		}
	}
	tombs := into(tx, next, bucketTombstones)
	for _, key := range slices.Sorted(maps.Keys(b.tombs.over)) {
		if slot := b.tombs.over[key]; slot.ok {
			tombs.putJSON(key, tombRecord{slot.val.Boot, slot.val.Started, slot.val.Until})
		} else if _, ok := b.tombs.base[key]; ok {
			tombs.drop(key)
		}
	}
	return cmp.Or(owners.err, releasing.err, rests.err, tombs.err, putHead(tx, next))
}

// putHead writes the head.
func putHead(tx *bolt.Tx, h *head) error {
	body, err := json.Marshal(h)
	if err != nil {
		return fmt.Errorf("encoding head: %w", err)
	}
	return tx.Bucket([]byte(bucketMeta)).Put(headKey, seal(bucketMeta, headKey, body))
}

// writer writes records of one bucket and keeps the bucket's sum. After an error it does
// nothing more; err is the first one.
type writer struct {
	name   string
	bucket *bolt.Bucket
	sum    *sum
	err    error
}

func into(tx *bolt.Tx, h *head, bucket string) *writer {
	return &writer{name: bucket, bucket: tx.Bucket([]byte(bucket)), sum: h.Sums[bucket]}
}

func (w *writer) put(key string, body []byte) {
	if w.err != nil {
		return
	}
	if old := w.bucket.Get([]byte(key)); old != nil {
		w.sum.sub(old)
	}
	rec := seal(w.name, []byte(key), body)
	w.sum.add(rec)
	w.err = w.bucket.Put([]byte(key), rec)
}

func (w *writer) putJSON(key string, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		w.err = cmp.Or(w.err, err)
		return
	}
	w.put(key, body)
}

func (w *writer) drop(key string) {
	if w.err != nil {
		return
	}
	old := w.bucket.Get([]byte(key))
	if old == nil {
		w.err = fmt.Errorf("record %.40q of bucket %s is not in the file", key, w.name)
		return
	}
	w.sum.sub(old)
	w.err = w.bucket.Delete([]byte(key))
}
