package engine

import "github.com/berth-net/berth/internal/hold"

// EventType says what happened to an owner.
type EventType string

// Types of events.
const (
	Attaching EventType = "attaching" // the owner is in the ledger, and its holds are being taken
	Attached  EventType = "attached"  // it has all of them
	Releasing EventType = "releasing" // its end is promised, and it is being cut off
	Released  EventType = "released"  // nothing of it is left
	Owing     EventType = "owed"      // a release failed, and is tried again
	Drifted   EventType = "drift"     // the world differed from the ledger
	Ended     EventType = "ended"     // something of it has come to its end by itself, as a process does
)

// Event is something that happened to an owner.
type Event struct {
	Type  EventType
	Owner hold.Owner
	Kind  string // of the hold, where it is about one
	Err   error  // Owing, Drifted: what is wrong
}

// FindingType says on what the ledger and the world disagree.
type FindingType string

// Types of findings.
const (
	LeftOver   FindingType = "left-over"  // a thing has no owner
	Gone       FindingType = "missing"    // a hold is not there
	Changed    FindingType = "changed"    // a hold is not as it should be
	Due        FindingType = "owed"       // a hold could not be released yet
	Unreadable FindingType = "unreadable" // a hold, or a whole kind, could not be seen
)

// Finding is something on which the ledger and the world disagree.
type Finding struct {
	Type FindingType
	Hold hold.Hold // zero Spec: a whole kind could not be read
	Kind string
	Err  error // more about it; may be nil
}
