package ground

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ledger"
)

// nodeRecord is the Owner.Meta of the agent's own owners.
type nodeRecord struct {
	Sort     string `json:"sort"` // "egress", "pool" or "stand"
	Pool     string `json:"pool,omitempty"`
	Cooldown string `json:"cooldown,omitempty"` // the pool's cooldown, such as "1m5s"; "": not known
	First    string `json:"first,omitempty"`    // the pool's first cooldown since the ledger was lost; "": it was not lost
	Lease    string `json:"lease,omitempty"`    // of a block of a cluster's pool: leaseGiven or leaseDrains
	Default  bool   `json:"default,omitempty"`  // the pool is config.Given.Default
	Segment  bool   `json:"segment,omitempty"`  // the CIDR's pool has a segment: the owner holds no route
	Behind   string `json:"behind,omitempty"`   // when the ledger was lost (lossText), if the CIDR has been rinsed behind that (ipam.Behind)
}

const (
	tableSort = "egress"
	poolSort  = "pool"
	standSort = "stand"
)

// What a record's Lease says. A CIDR of the node (Node.spec.podCIDRs) has none: it is of the pool config.NodePool while the
// cluster gives it, and of the pool former from then on.
const (
	leaseGiven  = "given"  // in force, also after a restart
	leaseDrains = "drains" // the cluster has taken it back, or asks for it
)

// StandName returns the name that the owner of a stand's route has. By this route pods' answers to
// 127.0.0.1 or to ::1 come back (nft.Stand4, nft.Stand6).
func StandName(stand netip.Addr) hold.Name {
	return hold.Name{Space: "agent", Name: "stand/" + stand.String()}
}

// TableName is the name that the owner of the agent's table has.
var TableName = hold.Name{Space: "agent", Name: "egress"}

// CIDRName returns the name that the owner of a pool's CIDR has.
func CIDRName(p netip.Prefix) hold.Name { return hold.Name{Space: "cidr", Name: p.String()} }

// sameRecord reports whether the record of one of the agent's own owners is rec.
func sameRecord(o hold.Owner, rec nodeRecord) bool {
	var have nodeRecord
	return json.Unmarshal(o.Meta, &have) == nil && have == rec
}

// ofSort reports whether an owner is one of the agent's own, of a sort.
func ofSort(o hold.Owner, sort string) bool {
	var have nodeRecord
	return json.Unmarshal(o.Meta, &have) == nil && have.Sort == sort
}

// amend gives one of the agent's own owners another record. Once a CIDR is out of the
// configuration, only this record tells how long the CIDR's addresses rest.
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
		panic(fmt.Sprintf("agent: encoding a node record: %v", err)) // cannot happen: a record has only plain strings
	}
	return meta
}

func nodeOwner(rec nodeRecord, name hold.Name, spec hold.Spec) hold.Owner {
	o := hold.Owner{ID: hold.NewID(), Meta: rec.encode(), Names: []hold.Name{name}}
	if !rec.Segment {
		o.Holds = []hold.Hold{{Owner: o.ID, Spec: spec}}
	}
	return o
}

// Whose tells people whether one of the agent's own owners belongs to a pool, to the node's responder (health) or to the node. It
// returns "" if it cannot read the owner's record.
func Whose(o hold.Owner) string {
	var rec nodeRecord
	if json.Unmarshal(o.Meta, &rec) != nil {
		return ""
	}
	switch rec.Sort {
	case poolSort:
		return "pool " + rec.Pool
	case "health": // the owners of the node's responder (package health)
		return "health"
	}
	return "node"
}
