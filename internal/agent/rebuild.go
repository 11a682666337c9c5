package agent

import (
	"context"
	"errors"

	"github.com/berth-net/berth/internal/node"
	"github.com/berth-net/berth/internal/rebuild"
)

// RebuildLedger replaces a ledger that is lost, damaged or older than the pods. It makes
// the new one from the stamps on what is in the kernel (rebuild.Anew).
func RebuildLedger(ctx context.Context, o Options) (*rebuild.Rebuilt, error) {
	if err := rebuild.Possible(o.Root); err != nil {
		return nil, err
	}
	a, err := openRooms(o, node.Open)
	if err != nil {
		return nil, err
	}
	out, err := a.rebuild.Anew(ctx)
	return out, errors.Join(err, a.Close())
}
