package mode

import (
	"time"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
)

// Joined has the further attachments of each pod join the pod's first one, and returns all with the first ones ahead. A further one whose
// first one is gone, or is being released, is being released: nobody else would ever ask for that.
func Joined(pods []Found, now time.Time) []Found {
	type place struct {
		container string
		netns     ns.Ref
	}
	at := func(p Found) place {
		n := p.Record.Netns
		return place{p.Record.ContainerID, ns.Ref{Dev: n.Dev, Ino: n.Ino, ID: n.ID}}
	}
	firsts := map[place]Found{}
	var all, further []Found
	for _, p := range pods {
		if attachment.IsFurther(p.Record.Key) {
			further = append(further, p)
			continue
		}
		all = append(all, p)
		if was, has := firsts[at(p)]; !has || !was.Owner.Wanted() {
			firsts[at(p)] = p
		}
	}
	for i, p := range further {
		first, has := firsts[at(p)]
		if has {
			p.Record.First = first.Owner.ID
			p.Owner.Needs, p.Owner.Joined, p.Owner.Meta = []hold.ID{first.Owner.ID}, i+1, p.Record.Encode()
		}
		if p.Owner.Wanted() && (!has || !first.Owner.Wanted()) {
			p.Owner.Releasing = now
		}
		all = append(all, p)
	}
	return all
}
