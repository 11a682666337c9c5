package ledger

import (
	"time"

	"github.com/berth-net/berth/internal/boottime"
	"github.com/berth-net/berth/internal/hold"
)

// Options say how a ledger is opened.
type Options struct {
	Path  string     // of the file; its folder must exist
	Kinds hold.Kinds // to decode specs with
	// Rest says how long a freed name rests before it can be claimed again.
	// Nil or 0: it is free at once.
	Rest func(hold.Name) time.Duration
	// Applied is called in the writer's goroutine after each transaction, in
	// commit order, before its commits answer. It may read the ledger, but not
	// commit; what it is given is not to be changed.
	Applied func(Change)
	// Clock is what all times go by that ops are given and that the ledger
	// returns; nil: one of its own.
	Clock *boottime.Clock
	// Boot is the id of the boot that Clock is in. A rest that was begun in it
	// ends by CLOCK_BOOTTIME, any other by the wall clock. Empty: all do by that.
	Boot string
}

// Change is what one transaction has changed.
type Change struct {
	Owners []Edit      // in commit order; one owner may appear more than once
	Rested []Rest      // names that rest now, sorted by name
	Woken  []hold.Name // names that rested and are claimed now, sorted
}

// Edit is a change of one owner. Nil Before: begun; nil After: forgotten.
type Edit struct{ Before, After *hold.Owner }

// Rest is a freed name that cannot be claimed until Until. Afterwards it stays
// listed, so that the name which has rested longest can be chosen. Both are
// times of Options.Clock, so that a rest takes as long as it is meant to,
// whatever the wall clock is set to and whenever the ledger is opened again in
// the same boot. In a later boot only the wall clock, which goes on while the
// machine is off, can tell how long a name had rested when the ledger was first
// opened in it: set back, it makes the rest begin anew then.
type Rest struct {
	Name  hold.Name `json:"name"`
	Freed time.Time `json:"freed"`
	Until time.Time `json:"until"`
}

// Quarantine is a rest of all names that nobody has: of a ledger that was made
// anew, since it cannot know who had them before. It is what the ledger
// remembers; those who give names out keep it. Its times are as a Rest's. Zero:
// none.
type Quarantine struct {
	Since time.Time `json:"since,omitzero"`
	Until time.Time `json:"until,omitzero"`
}

// Tombstone says that requests for Key which started before Started in the
// boot Boot come too late (Unburied). Started and Until (when it expires) are
// CLOCK_BOOTTIME in nanoseconds. Boot is whatever the caller tells boots apart
// by.
type Tombstone struct {
	Key     string `json:"key"`
	Boot    string `json:"boot"`
	Started int64  `json:"started"`
	Until   int64  `json:"until"`
}

// First is when the first agent of a state folder began, in a boot: CLOCK_BOOTTIME in
// nanoseconds. What happened before that, no ledger knows.
type First struct {
	Boot    string `json:"boot"`
	Started int64  `json:"started"`
}

// Epoch is what the identities of network namespaces hold in: one boot, and
// the agent's own namespace in it.
type Epoch struct {
	Boot  string `json:"boot"` // /proc/sys/kernel/random/boot_id
	Netns struct {
		Dev uint64 `json:"dev"`
		Ino uint64 `json:"ino"`
		ID  uint64 `json:"id,omitempty"` // SO_NETNS_COOKIE
	} `json:"netns"`
}
