package ground

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ledger"
)

// nodeRecord is the Owner.Meta of these owners.
type nodeRecord struct {
	Sort     string `json:"sort"` // "egress" or "pool"
	Pool     string `json:"pool,omitempty"`
	Cooldown string `json:"cooldown,omitempty"` // what the pool says, "1m5s"; "": not known
	First    string `json:"first,omitempty"`    // what it said first since the ledger was lost; "": not lost
}

const (
	tableSort = "egress"
	poolSort  = "pool"
)

// TableName is the name of the owner of the agent's table.
var TableName = hold.Name{Space: "agent", Name: "egress"}

// CIDRName is the name of the owner of a pool's CIDR.
func CIDRName(p netip.Prefix) hold.Name { return hold.Name{Space: "cidr", Name: p.String()} }

// sameRecord reports whether an owner of the agent's own has a record.
func sameRecord(o hold.Owner, rec nodeRecord) bool {
	var have nodeRecord
	return json.Unmarshal(o.Meta, &have) == nil && have == rec
}

// amend gives an owner of the agent's own another record: once the CIDR is out of the
// configuration, nothing else tells how long its addresses rest.
func (g *Ground) amend(ctx context.Context, id hold.ID, rec nodeRecord) error {
	err := g.Engine.Ledger.Commit(ctx, ledger.Update(id, func(o *hold.Owner) error {
		o.Meta = rec.encode()
		return nil
	}))
	if err != nil {
		return fmt.Errorf("writing down the cooldown of pool %s: %w", rec.Pool, err)
	}
	return nil
}

// encode returns the record as Owner.Meta.
func (r nodeRecord) encode() json.RawMessage {
	meta, err := json.Marshal(r)
	if err != nil {
		panic(fmt.Sprintf("agent: encoding a node record: %v", err)) // of plain strings
	}
	return meta
}

func nodeOwner(rec nodeRecord, name hold.Name, spec hold.Spec) hold.Owner {
	id := hold.NewID()
	return hold.Owner{ID: id, Meta: rec.encode(), Names: []hold.Name{name}, Holds: []hold.Hold{{Owner: id, Spec: spec}}}
}

// Whose says to people whose an owner's things are: a pool's or the node's; "" if they are
// not the agent's own.
func Whose(o hold.Owner) string {
	var rec nodeRecord
	if json.Unmarshal(o.Meta, &rec) != nil {
		return ""
	}
	if rec.Sort == poolSort {
		return "pool " + rec.Pool
	}
	return "node"
}
