package ledger

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/berth-net/berth/api"
)

// Snapshot returns what the ledger has now.
func (l *Ledger) Snapshot() Snapshot {
	s := Snapshot{
		Path: l.opts.Path, Size: l.Stats().FileSize, Schema: Schema,
		Epoch: l.Epoch(), Owners: l.Owners(), Resting: l.Resting(),
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	s.Tombstones = slices.SortedFunc(maps.Values(l.state.tombs), func(a, b Tombstone) int { return strings.Compare(a.Key, b.Key) })
	return s
}

// View returns the snapshot as the API shows it.
func (s Snapshot) View() api.Ledger {
	v := api.Ledger{
		Schema: s.Schema,
		Epoch:  api.Epoch{Boot: s.Epoch.Boot, Netns: api.Netns{Dev: s.Epoch.Netns.Dev, Ino: s.Epoch.Netns.Ino, ID: s.Epoch.Netns.ID}},
		Owners: []json.RawMessage{}, Resting: []api.Resting{}, Tombstones: []api.Tombstone{},
	}
	for _, o := range s.Owners {
		raw, err := json.Marshal(o)
		if err != nil { // what came out of a record goes into JSON again
			panic(fmt.Sprintf("ledger: showing owner %s: %v", o.ID, err))
		}
		v.Owners = append(v.Owners, raw)
	}
	for _, r := range s.Resting {
		v.Resting = append(v.Resting, api.Resting{Space: r.Name.Space, Name: r.Name.Name, Freed: r.Freed, Until: r.Until})
	}
	for _, t := range s.Tombstones {
		v.Tombstones = append(v.Tombstones, api.Tombstone(t))
	}
	return v
}
