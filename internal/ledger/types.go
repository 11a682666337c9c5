package ledger

import (
	"time"

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
	// Now is wall time, for rests; nil: time.Now.
	Now func() time.Time
	// Boottime is CLOCK_BOOTTIME in nanoseconds, for tombstones; nil: the
	// kernel's.
	Boottime func() int64
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
// wall time, which goes on while the machine is off: a clock that is set back
// makes a rest longer, by no more than the rest itself once the ledger is
// opened again.
type Rest struct {
	Name  hold.Name `json:"name"`
	Freed time.Time `json:"freed"`
	Until time.Time `json:"until"`
}

// Quarantine is a rest of all names that nobody has: of a ledger that was made
// anew, since it cannot know who had them before. It is what the ledger
// remembers; those who give names out keep it. Zero: none.
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
