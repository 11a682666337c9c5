package link

import (
	"context"
	"slices"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/stamp"
)

// Whole returns the instance's links that are whole, as a glance has them: if they are
// being listed already (ListAhead), it waits for that. An error of class
// kernel.ErrInterrupted comes with what was seen.
func (l *Links) Whole(ctx context.Context) ([]rtnl.Link, error) {
	links, err := l.list(ctx, hold.Glance())
	return slices.DeleteFunc(links, func(link rtnl.Link) bool { return !IsWhole(l.groups, link) }), err
}

// IsWhole reports whether a link of an instance is neither half-made nor cut off. It is
// born in the one group, and cut off by another: one that is in none of the instance's
// was live, and others have moved it.
func IsWhole(groups stamp.Groups, link rtnl.Link) bool {
	return link.Group != groups.Coming() && !groups.IsDying(link.Group)
}
