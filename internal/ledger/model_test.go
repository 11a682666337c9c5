package ledger

import (
	"maps"
	"slices"
)

func contentOfState(s state) content {
	c := content{Tombs: maps.Clone(s.tombs), Epoch: s.epoch, Rests: slices.Collect(maps.Values(s.rests))}
	sortRests(c.Rests)
	for _, id := range slices.Sorted(maps.Keys(s.owners)) {
		c.Owners = append(c.Owners, s.owners[id].owner)
	}
	return c
}
