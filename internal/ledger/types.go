package ledger

import (
	"time"

	"github.com/berth-net/berth/internal/boottime"
	"github.com/berth-net/berth/internal/hold"
)

// Options say how a ledger is opened.
type Options struct {
	Path  string     // of the file; its folder must exist
	Kinds hold.Kinds // decode the specs in records
	// Rest returns how long a freed name rests before it can be claimed again.
	// Nil or 0: the name is free at once.
	Rest func(hold.Name) time.Duration
	// Applied is called in the writer's goroutine after each transaction, in
	// commit order, before its commits answer. It may read the ledger, but must
	// neither commit nor change what it is given.
	Applied func(Change)
	// Clock is the clock of all times that callers give in ops and that the ledger returns; nil:
	// the ledger makes one.
	Clock *boottime.Clock
	// Boot is the id of the boot that Clock is in. A rest that began in this boot
	// ends by CLOCK_BOOTTIME, any other by the wall clock. Empty: all rests end by
	// the wall clock.
	Boot string

	volume     volume                  // nil: local
	minLog     int64                   // 0: minLog
	pruneEvery time.Duration           // 0: pruneEvery
	wrote      func(bytes, atMost int) // is called with the bytes of each payload, and with the limit that the batch had counted; or nil
}

// Change says what one transaction has changed.
type Change struct {
	Owners []Edit      // in commit order; one owner may appear more than once
	Rested []Rest      // names that rest now, sorted by name
	Woken  []hold.Name // names that had a rest and are claimed now, sorted
}

// Edit is a change of one owner. If Before is nil the owner was begun, if After is nil it
// was forgotten.
type Edit struct{ Before, After *hold.Owner }

// Rest is a freed name that cannot be claimed until Until. After that the name stays listed,
// so that a caller can choose the name that has rested longest.
//
// Freed and Until are times of Options.Clock. So within a boot a rest takes as long as it is meant
// to, even if somebody sets the wall clock, and however often the ledger is opened again.
// In a later boot only the wall clock, which goes on while the machine is off, can tell how
// long the name had rested when that boot first opened the ledger. If the wall clock has
// been set back by then to before the name was freed, the rest begins anew at that opening.
type Rest struct {
	Name  hold.Name `json:"name"`
	Freed time.Time `json:"freed"`
	Until time.Time `json:"until"`
}

// Quarantine is a rest of all names that nobody has. A ledger that was made anew has one,
// because it cannot know who had the names before. The ledger only remembers the quarantine;
// the callers that give names out have to observe it. Its times are times of Options.Clock, as a
// Rest's are. The zero value is no quarantine.
type Quarantine struct {
	Since time.Time `json:"since,omitzero"`
	Until time.Time `json:"until,omitzero"`
}

// Tombstone says that requests for Key which began at Started or earlier, in the boot Boot,
// come too late (Unburied). The tombstone expires at Until. Started and Until are CLOCK_BOOTTIME in
// nanoseconds. Boot is any text by which the caller tells boots apart.
type Tombstone struct {
	Key     string `json:"key"`
	Boot    string `json:"boot"`
	Started int64  `json:"started"`
	Until   int64  `json:"until"`
}

// First is when the first agent of a state folder began, in a boot: CLOCK_BOOTTIME in
// nanoseconds. No ledger knows what happened before that.
type First struct {
	Boot    string `json:"boot"`
	Started int64  `json:"started"`
}

// Epoch says where the identities of network namespaces in the ledger are valid: in one
// boot, and seen from the agent's own network namespace.
type Epoch struct {
	Boot  string `json:"boot"` // /proc/sys/kernel/random/boot_id
	Netns struct {
		Dev uint64 `json:"dev"`
		Ino uint64 `json:"ino"`
		ID  uint64 `json:"id,omitempty"` // as in ns.Ref: never reused in the boot; 0: not known
	} `json:"netns"`
}
