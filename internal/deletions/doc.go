// Package deletions is the queue of deletions that no agent has heard of: what
// a DEL writes while the agent is away, and what the agent does when it is
// back. The plugin links the part that writes; so nothing here may need net or
// context (see the plugin's weight_test.go), nor encode with encoding/json.
//
// A queue is the folder ROOT/var/lib/berth/deletions:
//
//	<16 hex of the key's hash>-<started, 16 hex>-<8 hex, random>.json   a deletion
//	spare-000-...                                                      room for a deletion, on a full disk for instance
//	tmp-...                                                            a deletion that is being written
//	damaged/                                                           what cannot be read as a deletion
//
// Names of deletions are never used again, so that an agent that removes one
// that it has done cannot remove a newer one of the same pod. A deletion is
// written elsewhere in the folder, and renamed when it is whole: who reads it
// sees all of it. A runtime repeats DEL, and each time is a deletion; on a disk
// without any room those make room that newer ones of the same pod say (room.go).
package deletions
