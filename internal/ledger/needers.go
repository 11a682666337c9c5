package ledger

import "github.com/berth-net/berth/internal/hold"

// edge says that an owner needs another one.
type edge struct{ needed, needer hold.ID }

// edges are the edges by the owners that are needed. A block of a pool is needed by all of its pods: so a commit adds and removes one
// edge at a time, and copies no list.
type edges map[hold.ID]map[hold.ID]struct{}

func (all edges) get(e edge) (struct{}, bool) {
	_, ok := all[e.needed][e.needer]
	return struct{}{}, ok
}

func (all edges) put(e edge, _ struct{}) {
	if all[e.needed] == nil {
		all[e.needed] = map[hold.ID]struct{}{}
	}
	all[e.needed][e.needer] = struct{}{}
}

func (all edges) drop(e edge) {
	delete(all[e.needed], e.needer)
	if len(all[e.needed]) == 0 {
		delete(all, e.needed)
	}
}

// counts are how many owners need an owner. The edges are the base of a batch's counts, too: what a batch changes of the counts,
// it changes of the edges.
type counts struct{ edges }

func (c counts) get(id hold.ID) (int, bool) { n := len(c.edges[id]); return n, n > 0 }
func (counts) put(hold.ID, int)             {}
func (counts) drop(hold.ID)                 {}

// join notes that an owner, who, needs others; leave notes that it does not need them any more.
func (b *batch) join(needed []hold.ID, who hold.ID) {
	for _, id := range needed {
		if _, there := b.edges.get(edge{id, who}); !there {
			b.edges.put(edge{id, who}, struct{}{})
			n, _ := b.needers.get(id)
			b.needers.put(id, n+1)
		}
	}
}

func (b *batch) leave(needed []hold.ID, who hold.ID) {
	for _, id := range needed {
		if _, there := b.edges.get(edge{id, who}); there {
			b.edges.drop(edge{id, who})
			n, _ := b.needers.get(id)
			b.needers.put(id, n-1)
		}
	}
}
