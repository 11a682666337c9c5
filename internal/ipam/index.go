package ipam

// index finds the slot of an offset. Offsets are given out in order, so that most come in
// runs. index has one entry for each run of 64 offsets, which keeps the map small even if
// there are many offsets.
type index map[uint64]*[runLen]uint32

const runLen = 64

// slot returns the slot of an offset; 0 if it has none. (No offset has slot 0.)
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
