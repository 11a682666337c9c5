package link

import (
	"context"
	"slices"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/stamp"
)

// Whole returns the instance's links that are whole, as a glance sees them. If ListAhead is
// listing the links, Whole waits for that list. With an error of class
// kernel.ErrInterrupted it returns the links that it saw.
func (l *Links) Whole(ctx context.Context) ([]rtnl.Link, error) {
	links, err := l.list(ctx, hold.Glance())
	return slices.DeleteFunc(links, func(link rtnl.Link) bool { return !IsWhole(l.groups, link) }), err
}

// IsWhole reports whether a link of an instance is neither half-made, which is in the
// coming group, nor cut off, which is in a dying group. A link in none of the instance's groups is
// whole: it was live, and other programs have moved it.
func IsWhole(groups stamp.Groups, link rtnl.Link) bool {
	return link.Group != groups.Coming() && !groups.IsDying(link.Group)
}
