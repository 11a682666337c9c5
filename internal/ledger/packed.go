package ledger

import (
	"cmp"
	"encoding/binary"
	"hash/maphash"
	"iter"
	"maps"
	"slices"
)

// packed is a map of records, of which there may be tens of thousands: rests and tombstones.
// packed keeps the records in a few large pieces of memory without pointers, in the order in which
// the records came. In a Go map of strings and structs the records take twice to three times the
// memory, and the garbage collector visits each.
//
// The key of a tombstone is mostly a number of 64 hexadecimal digits, the container's id, between
// texts that most keys share. So packed keeps the longest number of a key in half as many bytes,
// and the text around the number in a list (around).
//
// Records never change in their place. So a view stays as it is while records come and go. A
// piece goes with its last record; records go about in the order in which they came.
type packed[V any] struct {
	form   form[V]
	common string           // the shared text (form) of the first record
	around []string         // what keys have around their number, with a 0 in its place; at most maxAround
	at     map[uint32]place // by the key's hash
	most   int              // the most entries that at has had since it was made
	pieces []*piece         // nil: the piece has gone
	bytes  int              // of the records in pieces that have not gone
	last   int              // index of the piece that is being filled; -1: none
	odd    map[string]V     // what has no place: another key has the same hash, or the record is too long
	hash   func(string) uint32
	record []byte // the record that is being put together; kept to be used again
}

// form says how a record becomes bytes, and back. A text that most records share need not be among
// the bytes: shared returns a record's shared text, and the packed map keeps it once.
type form[V any] struct {
	shared func(V) string
	pack   func(dst []byte, v V, common string) []byte
	unpack func(body []byte, common string) V
}

const (
	pieceBits = 15
	pieceSize = 1 << pieceBits
)

// place is where a record begins: the index of its piece, and the offset in it.
type place uint32

// piece has records one behind another: the key (appendKey), the length of the body, the body.
// The length takes two bytes, so that the body can be appended before it is known.
type piece struct {
	buf  []byte // what is there does not change; more is appended
	live int    // records that have not gone
}

func newPacked[V any](f form[V]) *packed[V] {
	seed := maphash.MakeSeed()
	return &packed[V]{
		form: f, at: map[uint32]place{}, last: -1, odd: map[string]V{},
		hash: func(key string) uint32 { return uint32(maphash.String(seed, key)) },
	}
}

func (p *packed[V]) len() int { return len(p.at) + len(p.odd) }

// find returns the place of a key's record.
func (p *packed[V]) find(key string) (uint32, place, bool) {
	h := p.hash(key)
	at, ok := p.at[h]
	if !ok {
		return h, 0, false
	}
	var room [256]byte
	k, _ := cutKey(room[:0], p.from(at), p.around)
	return h, at, string(k) == key
}

// from returns the bytes of a piece from a place on.
func (p *packed[V]) from(at place) []byte { return p.pieces[at>>pieceBits].buf[at&(pieceSize-1):] }

func (p *packed[V]) get(key string) (V, bool) {
	if v, ok := p.odd[key]; ok {
		return v, true
	}
	if _, at, ok := p.find(key); ok {
		return p.form.unpack(bodyOf(p.from(at)), p.common), true
	}
	var none V
	return none, false
}

func (p *packed[V]) put(key string, v V) {
	p.drop(key)
	if p.len() == 0 {
		p.common, p.around = p.form.shared(v), nil
	}
	p.record = p.appendKey(p.record[:0], key)
	size := len(p.record)
	p.record = p.form.pack(append(p.record, 0, 0), v, p.common)
	h := p.hash(key)
	if _, taken := p.at[h]; taken || len(p.record) > pieceSize {
		p.odd[key] = v
		return
	}
	binary.LittleEndian.PutUint16(p.record[size:], uint16(len(p.record)-size-2))
	p.at[h] = p.add(p.record)
	p.bytes += len(p.record)
	p.most = max(p.most, len(p.at))
}

// add adds a record to the pieces.
func (p *packed[V]) add(record []byte) place {
	if p.last < 0 || len(p.pieces[p.last].buf)+len(record) > pieceSize {
		p.begin()
	}
	to := p.pieces[p.last]
	at := place(p.last<<pieceBits | len(to.buf))
	to.buf = append(to.buf, record...)
	to.live++
	return at
}

// begin begins a piece.
func (p *packed[V]) begin() {
	if p.last = slices.Index(p.pieces, nil); p.last < 0 {
		p.last = len(p.pieces)
		p.pieces = append(p.pieces, nil)
	}
	p.pieces[p.last] = &piece{buf: make([]byte, 0, pieceSize)}
}

func (p *packed[V]) drop(key string) {
	delete(p.odd, key)
	if h, at, ok := p.find(key); ok {
		p.remove(h, at)
	}
}

func (p *packed[V]) remove(h uint32, at place) {
	delete(p.at, h)
	p.bytes -= sizeOf(p.from(at))
	i := int(at >> pieceBits)
	if p.pieces[i].live--; p.pieces[i].live == 0 && i != p.last {
		p.pieces[i] = nil
	}
}

// values returns all records, in no order.
func (p *packed[V]) values() iter.Seq[V] {
	return func(yield func(V) bool) {
		for _, at := range p.at {
			if !yield(p.form.unpack(bodyOf(p.from(at)), p.common)) {
				return
			}
		}
		for _, v := range p.odd {
			if !yield(v) {
				return
			}
		}
	}
}

// keys returns the keys of the records that a function chooses, in order.
func (p *packed[V]) keys(chosen func(V) bool) (keys []string) {
	for _, at := range p.at {
		if record := p.from(at); chosen(p.form.unpack(bodyOf(record), p.common)) {
			key, _ := cutKey(nil, record, p.around)
			keys = append(keys, string(key))
		}
	}
	for key, v := range p.odd {
		if chosen(v) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// dropAll drops all records that a function chooses.
func (p *packed[V]) dropAll(chosen func(V) bool) {
	for h, at := range p.at {
		if chosen(p.form.unpack(bodyOf(p.from(at)), p.common)) {
			p.remove(h, at)
		}
	}
	maps.DeleteFunc(p.odd, func(_ string, v V) bool { return chosen(v) })
}

// shrink gives memory back if most records have gone: a Go map keeps room for the most entries that
// it ever had, and a piece takes all of its room as long as one record is left in it.
func (p *packed[V]) shrink() {
	if len(p.at) <= p.most/2 {
		p.most = len(p.at)
		less := make(map[uint32]place, len(p.at))
		maps.Copy(less, p.at)
		p.at = less
	}
	pieces := 0
	for _, piece := range p.pieces {
		if piece != nil {
			pieces++
		}
	}
	if pieces*pieceSize <= 2*(p.bytes+pieceSize) {
		return
	}
	hashes := slices.SortedFunc(maps.Keys(p.at), func(a, b uint32) int { return cmp.Compare(p.at[a], p.at[b]) })
	former := p.pieces
	p.pieces, p.last = nil, -1
	for _, h := range hashes {
		record := former[p.at[h]>>pieceBits].buf[p.at[h]&(pieceSize-1):]
		p.at[h] = p.add(record[:sizeOf(record)])
	}
}

// view is what a packed map had at one moment.
type view[V any] struct {
	form   form[V]
	common string
	around []string
	bufs   [][]byte // of the pieces
	places []place
	odd    map[string]V
}

// view returns what the map has now, for another goroutine. The view takes four bytes a record. It
// yields the records in about the order in which they came into the map.
func (p *packed[V]) view() view[V] {
	v := view[V]{form: p.form, common: p.common, around: p.around, odd: maps.Clone(p.odd)}
	v.places = slices.Sorted(maps.Values(p.at))
	for _, piece := range p.pieces {
		var buf []byte
		if piece != nil {
			buf = piece.buf
		}
		v.bufs = append(v.bufs, buf)
	}
	return v
}

func (v view[V]) len() int { return len(v.places) + len(v.odd) }

// all returns the records by their keys.
func (v view[V]) all() iter.Seq2[string, V] {
	return func(yield func(string, V) bool) {
		var key []byte
		for _, at := range v.places {
			record := v.bufs[at>>pieceBits][at&(pieceSize-1):]
			key, _ = cutKey(key[:0], record, v.around)
			if !yield(string(key), v.form.unpack(bodyOf(record), v.common)) {
				return
			}
		}
		for key, r := range v.odd {
			if !yield(key, r) {
				return
			}
		}
	}
}
