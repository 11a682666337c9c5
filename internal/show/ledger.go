package show

import (
	"encoding/json"
	"fmt"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/ledger"
)

// Ledger shows the records of a ledger.
func Ledger(s ledger.Snapshot) api.Ledger {
	v := api.Ledger{
		Schema: s.Schema,
		Epoch:  api.Epoch{Boot: s.Epoch.Boot, Netns: api.Netns{Dev: s.Epoch.Netns.Dev, Ino: s.Epoch.Netns.Ino, ID: s.Epoch.Netns.ID}},
		Owners: []json.RawMessage{}, Resting: []api.Resting{}, Tombstones: []api.Tombstone{},
	}
	for _, o := range s.Owners {
		raw, err := json.Marshal(o)
		if err != nil { // cannot happen: the owner was decoded from JSON
			panic(fmt.Sprintf("show: owner %s: %v", o.ID, err))
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
