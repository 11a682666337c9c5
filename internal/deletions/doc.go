// Package deletions is the queue of deletions that no agent has heard of. A DEL writes a deletion
// while the agent is away, and the agent does the deletion once the agent is back. The plugin links
// the part that writes; so nothing here may import net or context, not even through another package
// (see the plugin's weight_test.go), or encode with encoding/json.
//
// A queue is the folder ROOT/var/lib/berth/deletions:
//
//	<16 hex of the key's hash>-<started, 16 hex>-<8 hex, random>.json   a deletion
//	spare-000-...                                                      room for a deletion, on a full disk for instance
//	tmp-...                                                            a deletion that is being written
//	damaged/                                                           what cannot be read as a deletion
//
// A deletion's name is never used again: when an agent removes a deletion that it has done,
// the agent cannot remove a newer one of the same pod. A deletion is written under another name in
// the folder, and is renamed when it is whole, so that a reader sees all of it. A runtime
// repeats DEL, and each DEL writes a deletion. On a disk without any room, the writer uses the
// files of deletions that a newer deletion of the same pod repeats (room.go).
package deletions
