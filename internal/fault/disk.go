package fault

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/ledger"
)

// ErrFull is the error of a commit to a full disk.
var ErrFull = errors.New("disk full")

// Disk is a ledger on a disk that a test can fill: it refuses commits.
type Disk struct {
	engine.Ledger
	mu    sync.Mutex
	after int    // from which commit on the disk refuses commits; 1: from the next one; 0: it refuses none
	op    string // the disk refuses only commits that have an op of this type; "": all commits
}

// Fill lets the disk be full from a later commit on: `after` counts the commits from now on, and 1 is the
// next commit.
func (d *Disk) Fill(after int) { d.set(after, "") }

// FillFor lets the disk have no room for commits that have an op of a type, such as
// "ledger.releasing".
func (d *Disk) FillFor(op string) { d.set(1, op) }

// Clear makes room on the disk.
func (d *Disk) Clear() { d.set(0, "") }

func (d *Disk) set(after int, op string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.after, d.op = after, op
}

// IsFull reports whether the disk refuses commits now, or will refuse them after some more commits.
func (d *Disk) IsFull() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.after > 0
}

// Commit commits to the ledger, if the disk has room.
func (d *Disk) Commit(ctx context.Context, ops ...ledger.Op) error {
	if d.refuses(ops) {
		return ErrFull
	}
	return d.Ledger.Commit(ctx, ops...)
}

func (d *Disk) refuses(ops []ledger.Op) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	has := d.op == ""
	for _, op := range ops {
		has = has || fmt.Sprintf("%T", op) == d.op
	}
	if d.after > 1 {
		d.after--
		return false
	}
	return d.after == 1 && has
}
