package link

import (
	"context"
	"slices"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/rtnl"
)

// Whole returns the instance's links that are in the live group, as a glance has
// them: if they are being listed already (ListAhead), it waits for that. An error of
// class kernel.ErrInterrupted comes with what was seen.
func (l *Links) Whole(ctx context.Context) ([]rtnl.Link, error) {
	links, err := l.list(hold.Glance(ctx))
	return slices.DeleteFunc(links, func(link rtnl.Link) bool { return link.Group != l.groups.Live() }), err
}
