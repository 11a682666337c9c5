package api

import (
	"slices"
	"time"
)

// Past tells of one attachment from its ADD to its end (GET /v1/history). Ended is nil as
// long as the attachment is in the ledger. State is the attachment's last one: "releasing" or
// "owed" until it ended, and "attached" as long as no agent has taken up its queued DEL.
type Past struct {
	Attachment  Attachment `json:"attachment"`
	Failed      string     `json:"failed,omitempty"`      // why its ADD failed
	AskedBy     string     `json:"askedBy,omitempty"`     // who had the attachment released, one of Askers; "": only an earlier run of the agent knew who
	Queued      *time.Time `json:"queued,omitempty"`      // when the plugin queued its DEL, because no agent answered; Releasing is when an agent took up the DEL
	CutOff      *time.Time `json:"cutOff,omitempty"`      // when the pod was cut off (if Inherited, at the latest then); nil: not cut off yet, or not before the release
	CutByPlugin bool       `json:"cutByPlugin,omitempty"` // the plugin cut the pod off, after the plugin had queued the DEL
	CutError    string     `json:"cutError,omitempty"`
	Holds       []PastHold `json:"holds,omitempty"`
	Ended       *time.Time `json:"ended,omitempty"` // when the ledger forgot the attachment; from then on the attachment's addresses rest
}

// PastHold tells of the release of one hold. The agent does not know the tries of an earlier run.
type PastHold struct {
	Kind     string     `json:"kind"` // of the hold; "ledger": the owner's end could not be written at once
	What     string     `json:"what"` // the thing, in ip's or nft's words
	Released *time.Time `json:"released,omitempty"`
	Failures int        `json:"failures,omitempty"` // tries that failed
	Since    *time.Time `json:"since,omitempty"`    // when the first of these tries failed
	Error    string     `json:"error,omitempty"`    // of the last of these tries
}

// These words say who had an attachment released.
const (
	AskedDelete   = "delete"   // DEL, or the API's deletion by container or pod
	AskedQueued   = "queued"   // DEL while no agent answered: the plugin queued it
	AskedGC       = "gc"       // GC
	AskedRelease  = "release"  // `berth release`: the API's deletion by the attachment's id
	AskedFailed   = "failed"   // nobody: its ADD failed
	AskedReplaced = "replaced" // an ADD of the same key in another network namespace
	AskedGone     = "gone"     // nobody: its network namespace was gone, or ended with a reboot
)

// Askers lists who may have had an attachment released.
func Askers() []string {
	return []string{AskedDelete, AskedQueued, AskedGC, AskedRelease, AskedFailed, AskedReplaced, AskedGone}
}

// PastFilter chooses what GET /v1/history tells. As a query:
// ?pod=&container=&address=&at=&until=&since=&limit=. Empty fields match everything.
type PastFilter struct {
	Pod       string // NAMESPACE/NAME, NAME or UID
	Container string
	Address   string    // as netip.Addr.String writes it; an IPv4 address is not mapped into IPv6
	At        time.Time // the attachment was attached then, and not cut off; if Inherited, its release was not promised yet
	Until     time.Time // with At: attached, and not cut off, at any moment from At on and before Until
	Since     time.Time // the attachment ended then or later, or has not ended
	Limit     int       // how many attachments at most; 0: all
}

// Matches reports whether the filter, its limit aside, chooses p.
func (f PastFilter) Matches(p Past) bool {
	at := p.Attachment
	pod := Pod{}
	if at.Pod != nil {
		pod = *at.Pod
	}
	switch {
	case f.Pod != "" && f.Pod != pod.Namespace+"/"+pod.Name && f.Pod != pod.Name && f.Pod != pod.UID:
	case f.Container != "" && f.Container != at.ContainerID:
	case f.Address != "" && !slices.Contains(at.Addresses, f.Address):
	case !f.At.IsZero() && at.Created.After(f.At) && !at.Created.Before(f.Until):
	case !f.At.IsZero() && p.lost() != nil && f.At.After(*p.lost()):
	case !f.Since.IsZero() && p.Ended != nil && p.Ended.Before(f.Since):
	default:
		return true
	}
	return false
}

// Inherited reports whether an earlier run of the agent promised the release. The earlier run
// answered the DEL only when it had cut the attachment off. The present run cannot know whether the
// earlier run got that far, and so cuts the attachment off once more.
func (p Past) Inherited() bool { return p.Attachment.Releasing != nil && p.AskedBy == "" }

// lost returns when the attachment could no longer use its addresses; nil: it still can. If an
// earlier run promised the release, the cut counts from the promise on, unless a cut is known to have failed.
func (p Past) lost() *time.Time {
	switch {
	case p.Inherited() && p.CutError == "":
		return p.Attachment.Releasing
	case p.CutOff != nil:
		return p.CutOff
	}
	return p.Ended
}

// PastLine is one line of GET /v1/history: an attachment or, as the last line, an End.
type PastLine struct {
	Past *Past    `json:"past,omitempty"`
	End  *PastEnd `json:"end,omitempty"`
}

// PastEnd ends the answer to GET /v1/history.
type PastEnd struct {
	Error   string `json:"error,omitempty"`   // why not all could be read
	Damaged int    `json:"damaged,omitempty"` // records that could not be read
	Lost    uint64 `json:"lost,omitempty"`    // records that this run of the agent could not write
}

// HistoryCount says what the history lacks.
type HistoryCount struct {
	Lost  uint64 `json:"lost,omitempty"`  // records that this run of the agent could not write
	Error string `json:"error,omitempty"` // why the last write failed, if it did
}

// PastReader reads what became of attachments, one after the other.
type PastReader interface {
	Next() (Past, error) // io.EOF after the last one
	End() PastEnd        // how the reading went
	Close() error
}
