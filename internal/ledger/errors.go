package ledger

import (
	"errors"
	"fmt"
	"time"

	"github.com/berth-net/berth/internal/hold"
)

// Errors of commits and of opening. They come wrapped with the operation. The comment behind each
// error says what returns it.
var (
	ErrInvalid = errors.New("invalid")                                     // an ID, name or record that cannot be written
	ErrExists  = errors.New("owner exists")                                // Begin
	ErrUnknown = errors.New("unknown owner")                               // Update, Pass, Releasing
	ErrNeeds   = errors.New("needs an owner that is unknown or releasing") // Begin, Update
	ErrNeeded  = errors.New("others still need the owner")                 // Forget
	ErrBuried  = errors.New("deleted since")                               // Unburied
	ErrChanged = errors.New("owner has changed")                           // Unchanged
	ErrFull    = errors.New("disk full")                                   // any commit but one that only releases and forgets owners, with tombstones: see Begin, Update, Bury
	ErrClosed  = errors.New("ledger is closed")                            // any commit
	ErrFailed  = errors.New("ledger failed")                               // any commit: after a failed write nobody knows what the file contains; open it anew
	ErrLocked  = errors.New("ledger is in use")                            // Open, Read: another process has it open
	ErrNewer   = errors.New("ledger is of a newer version")                // Open, Read
)

// NameTakenError says why a name cannot be claimed: either Owner has it, or it rests until
// Until, by the wall clock.
type NameTakenError struct {
	Name  hold.Name
	Owner hold.ID
	Until time.Time
}

func (e *NameTakenError) Error() string {
	if e.Owner != "" {
		return fmt.Sprintf("name %s is taken by owner %s", e.Name, e.Owner)
	}
	return fmt.Sprintf("name %s rests until %s", e.Name, e.Until.UTC().Format(time.RFC3339))
}

// DamagedError says that a ledger's file does not contain what was written. The ledger
// leaves such a file as it is.
type DamagedError struct {
	Path string
	What string // the first damage found
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("ledger %s is damaged: %s; the file stays as it is. "+
		"Put an intact copy in its place, or run berthd --rebuild-ledger, which makes one from the pods' links in the kernel", e.Path, e.What)
}
