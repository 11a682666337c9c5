package ground

import (
	"cmp"
	"encoding/json"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ipam"
)

// heldCIDR is a pool's CIDR that an owner in the ledger has, whether or not it is in the
// config.
type heldCIDR struct {
	owner    hold.ID
	pool     string
	cidr     netip.Prefix
	cooldown time.Duration // the pool's last cooldown, or ipam.Unknown
	first    time.Duration // the pool's first cooldown since the ledger was lost; equal to cooldown, if the record has no First
	behind   string        // nodeRecord.Behind
	lease    string        // nodeRecord.Lease
	standard bool          // nodeRecord.Default
	segment  bool          // nodeRecord.Segment
}

// held has the ledger's CIDRs of pools, so that nobody walks the ledger for them: it has an owner for each pod. Follow and Restore
// keep it in step.
type held struct {
	mu    sync.Mutex
	cidrs map[hold.ID][]heldCIDR
	all   []heldCIDR // what heldCIDRs returns; nil: an owner has changed since
}

// heldCIDRs returns the ledger's CIDRs of pools, by their owners' ids. The caller must not change the slice.
func (g *Ground) heldCIDRs() []heldCIDR {
	h := &g.held
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.all == nil {
		for _, of := range h.cidrs {
			h.all = append(h.all, of...)
		}
		slices.SortFunc(h.all, func(a, b heldCIDR) int { return cmp.Or(cmp.Compare(a.owner, b.owner), a.cidr.Compare(b.cidr)) })
	}
	return h.all
}

// Needs returns the owners of the pools' CIDRs that have the addresses among names. An attachment needs these (hold.Owner.Needs): so the
// lease of a block, and a pool's route, stay until the last attachment is gone (hold.Kind.Waits), whatever the pools say of its address.
// The owner of a segment's CIDR holds nothing that would wait, and would take the attachments along: nobody needs it.
func (g *Ground) Needs(names []hold.Name) (owners []hold.ID) {
	for _, n := range names {
		if n.Space != ipam.Space { // such as a port of the node
			continue
		}
		a, err := ipam.ParseName(n)
		if err != nil {
			continue
		}
		for _, h := range g.heldCIDRs() {
			if h.cidr.Contains(a) && !h.segment && !slices.Contains(owners, h.owner) {
				owners = append(owners, h.owner)
			}
		}
	}
	return owners
}

// put notes what an owner has now. Most owners have no CIDR of a pool.
func (h *held) put(o hold.Owner) {
	cidrs := cidrsOf(o)
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, known := h.cidrs[o.ID]; !known && len(cidrs) == 0 {
		return
	}
	h.all = nil
	if len(cidrs) == 0 {
		delete(h.cidrs, o.ID)
		return
	}
	if h.cidrs == nil {
		h.cidrs = map[hold.ID][]heldCIDR{}
	}
	h.cidrs[o.ID] = cidrs
}

// drop notes that an owner is forgotten.
func (h *held) drop(id hold.ID) { h.put(hold.Owner{ID: id}) }

// cidrsOf returns an owner's CIDRs of pools. An owner that is being released has none.
func cidrsOf(o hold.Owner) (all []heldCIDR) {
	var rec nodeRecord
	cidrs := o.NamesIn("cidr") // before the record is decoded: most owners are attachments or other nodes
	if len(cidrs) == 0 || len(o.NamesIn("node")) > 0 || !o.Wanted() || json.Unmarshal(o.Meta, &rec) != nil || rec.Sort != poolSort {
		return nil
	}
	cooldown, err := time.ParseDuration(rec.Cooldown)
	if err != nil { // an older version wrote the record, or it was rebuilt
		cooldown = ipam.Unknown
	}
	first, err := time.ParseDuration(rec.First)
	if err != nil {
		first = cooldown
	}
	for _, name := range cidrs {
		if p, err := netip.ParsePrefix(name); err == nil {
			all = append(all, heldCIDR{o.ID, rec.Pool, p, cooldown, first, rec.Behind, rec.Lease, rec.Default, rec.Segment})
		}
	}
	return all
}
