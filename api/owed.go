package api

import "time"

// Owed is a hold whose release was tried and failed. The agent tries the release again for ever.
type Owed struct {
	Owner string    `json:"owner"`
	Kind  string    `json:"kind"` // of the hold; "ledger": all is released, but the owner cannot be forgotten
	What  string    `json:"what"` // the thing, in ip's or nft's words
	Since time.Time `json:"since"`
	Tries int       `json:"tries"` // since this agent was started
	Next  time.Time `json:"next"`  // when the agent tries the release next; the zero time: this agent cannot try it
	Error string    `json:"error"` // of the last try
}

// OwedHold is a hold that is owed, and its owner: an attachment or, if Network is empty,
// the agent itself.
type OwedHold struct {
	Owed
	Network     string `json:"network,omitempty"`
	ContainerID string `json:"containerID,omitempty"`
	Ifname      string `json:"ifname,omitempty"`
	Pod         *Pod   `json:"pod,omitempty"`
}

// OwedList is all that is owed (GET /v1/owed): the holds that could not be released yet,
// the longest owed first, and the deletions that have not begun yet.
type OwedList struct {
	Holds     []OwedHold `json:"holds"`
	Deletions Deletions  `json:"deletions"`
}

// Deletions lists the folder in which the plugin leaves deletions when no agent answers it.
type Deletions struct {
	Queued  []QueuedDeletion  `json:"queued"`  // oldest first
	Damaged []DamagedDeletion `json:"damaged"` // set aside, oldest first
	// Spares is how many more deletions have room in the folder on a full disk.
	Spares int    `json:"spares"`
	Error  string `json:"error,omitempty"` // why not all of this is known
}

// QueuedDeletion is a deletion that waits for the agent.
type QueuedDeletion struct {
	Name        string    `json:"name"` // of its file
	Network     string    `json:"network"`
	ContainerID string    `json:"containerID"`
	Ifname      string    `json:"ifname"`
	Pod         *Pod      `json:"pod,omitempty"`  // if the ledger knows it
	Link        string    `json:"link,omitempty"` // host veth that prevResult names
	Addresses   []string  `json:"addresses,omitempty"`
	Netns       string    `json:"netns,omitempty"` // path
	Written     time.Time `json:"written"`
	Cut         bool      `json:"cut"`              // the plugin says that it has cut the pod off
	Reason      string    `json:"reason,omitempty"` // why the agent had not answered
}

// DamagedDeletion is a file that cannot be read as a deletion. The agent keeps it for people to
// look at: the attachment that it was to delete may still be there.
type DamagedDeletion struct {
	Name  string    `json:"name"`
	Since time.Time `json:"since"`
	Error string    `json:"error"`
}

// DeletionCount is how many deletions wait, and how many more have room.
type DeletionCount struct {
	Queued      int    `json:"queued"`      // files; an attachment can have several, because a runtime repeats a DEL
	Attachments int    `json:"attachments"` // that the queued deletions delete
	Uncut       int    `json:"uncut"`       // how many of these attachments may still send
	Damaged     int    `json:"damaged"`
	Spares      int    `json:"spares"`            // how many more have room on a full disk
	Filling     bool   `json:"filling,omitempty"` // the agent has just started, or has more pods than before, and is making room for more
	Error       string `json:"error,omitempty"`   // why the numbers are not known
}

// RetryRequest asks the agent to try at once to release what these owners owe (POST
// /v1/owed/retry). Without IDs it tries what all owners owe, and queued deletions as well.
type RetryRequest struct {
	IDs []string `json:"ids,omitempty"`
}

// Retried says how many tries are made. GET /v1/owed shows how they ended.
type Retried struct {
	Holds     int `json:"holds"`
	Deletions int `json:"deletions"` // queued ones
}
