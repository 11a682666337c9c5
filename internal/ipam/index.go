package ipam

// index finds the slot of an offset. Offsets are given out in their order, so
// that they come in runs: it has one entry for 64 of them that are side by
// side, which makes it a small map, also where it has many offsets.
type index map[uint64]*[runLen]uint32

const runLen = 64

// slot returns the slot of an offset; 0, which is none's: it has none.
func (x index) slot(off uint64) uint32 {
	if run := x[off/runLen]; run != nil {
		return run[off%runLen]
	}
	return 0
}

func (x index) set(off uint64, slot uint32) {
	run := x[off/runLen]
	if run == nil {
		run = new([runLen]uint32)
		x[off/runLen] = run
	}
	run[off%runLen] = slot
}
