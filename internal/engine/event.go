package engine

import "github.com/berth-net/berth/internal/hold"

// EventType says what happened to an owner.
type EventType string

// Types of events.
const (
	Attaching EventType = "attaching" // the owner is in the ledger, and its holds are being taken
	Attached  EventType = "attached"  // the owner has all of its holds
	Releasing EventType = "releasing" // the owner's release is promised, and the owner is being cut off
	Released  EventType = "released"  // nothing of the owner is left
	Owing     EventType = "owed"      // a release failed, and is tried again
	Drifted   EventType = "drift"     // the world differed from the ledger
	Mended    EventType = "mended"    // what had drifted is as the ledger says again
	Ended     EventType = "ended"     // a thing that the owner holds has ended by itself, as a process does
)

// Event is something that happened to an owner.
type Event struct {
	Type  EventType
	Owner hold.Owner
	Kind  string // the kind of the hold that the event is about; "ledger": the event is about a commit; "": about the owner
	Err   error  // Owing, Drifted, Mended, Ended: what was seen
	Past  *Past  // Released: how the release went
}

// FindingType says how the ledger and the world disagree.
type FindingType string

// Types of findings.
const (
	LeftOver   FindingType = "left-over"  // a thing has no owner
	Gone       FindingType = "missing"    // a hold is not there
	Changed    FindingType = "changed"    // a hold is not as it should be
	Due        FindingType = "owed"       // a hold could not be released yet
	Unreadable FindingType = "unreadable" // a hold, or a whole kind, could not be seen
)

// FindingTypes lists the types of findings.
func FindingTypes() []FindingType { return []FindingType{LeftOver, Gone, Changed, Due, Unreadable} }

// Finding is something on which the ledger and the world disagree.
type Finding struct {
	Type FindingType
	Hold hold.Hold // zero Spec: a whole kind could not be read
	Kind string
	Err  error // what was seen; may be nil
}
