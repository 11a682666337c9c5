package fault

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/ledger"
)

// ErrFull is what a full disk answers.
var ErrFull = errors.New("disk full")

// Disk is a ledger on a disk that a test can fill: it refuses commits.
type Disk struct {
	engine.Ledger
	mu    sync.Mutex
	after int    // commits are refused from the after-th one on; 0: none
	op    string // only commits that have such an op are refused; "": all
}

// Fill lets the disk be full from the after-th commit from now on. 1 is the next one.
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

// IsFull reports whether commits are refused now, or after some more.
func (d *Disk) IsFull() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.after > 0
}

// Commit is the ledger's, if there is room.
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
