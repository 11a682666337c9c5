package ledger

import (
	"encoding/binary"

	"github.com/berth-net/berth/internal/hold"
)

// The forms in which packed maps have rests and tombstones. Most numbers are near another number of
// their record, and take few bytes as the difference from that number.

// restForm has no shared text: a rest has the mark of its boot, which is a number (span.Boot).
var restForm = form[rested]{
	shared: func(rested) string { return "" },
	pack: func(dst []byte, r rested, _ string) []byte {
		dst = binary.LittleEndian.AppendUint64(dst, uint64(r.freed))
		dst = binary.AppendVarint(dst, r.span.Freed-r.freed)
		dst = binary.AppendVarint(dst, r.span.Until-r.span.Freed)
		if r.span.Boot == 0 && r.span.At == 0 {
			return dst
		}
		dst = binary.LittleEndian.AppendUint32(dst, r.span.Boot)
		return binary.AppendVarint(dst, r.span.At)
	},
	unpack: func(b []byte, _ string) (r rested) {
		r.freed, b = int64(binary.LittleEndian.Uint64(b)), b[8:]
		r.span.Freed, b = cutVarint(b, r.freed)
		r.span.Until, b = cutVarint(b, r.span.Freed)
		if len(b) > 0 {
			r.span.Boot = binary.LittleEndian.Uint32(b)
			r.span.At, _ = cutVarint(b[4:], 0)
		}
		return r
	},
}

// The shared text of tombForm is the boot. A tombstone of another boot, which is rare, has its boot
// among its bytes.
var tombForm = form[tomb]{
	shared: func(t tomb) string { return t.boot },
	pack: func(dst []byte, t tomb, common string) []byte {
		dst = binary.AppendVarint(dst, t.started)
		dst = binary.AppendVarint(dst, t.until-t.started)
		if t.boot == common {
			return dst
		}
		return append(append(dst, 0), t.boot...)
	},
	unpack: func(b []byte, common string) (t tomb) {
		t.boot = common
		t.started, b = cutVarint(b, 0)
		t.until, b = cutVarint(b, t.started)
		if len(b) > 0 {
			t.boot = string(b[1:])
		}
		return t
	},
}

// cutVarint cuts a number off b. b has the number's difference from `from`.
func cutVarint(b []byte, from int64) (int64, []byte) {
	d, width := binary.Varint(b)
	return from + d, b[width:]
}

// restsByName are rests as a layer's base.
type restsByName struct{ *packed[rested] }

func (r restsByName) get(n hold.Name) (rested, bool) { return r.packed.get(keyOf(n)) }
func (r restsByName) put(n hold.Name, v rested)      { r.packed.put(keyOf(n), v) }
func (r restsByName) drop(n hold.Name)               { r.packed.drop(keyOf(n)) }
