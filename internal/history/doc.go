// Package history keeps what became of attachments that are gone: one record for each, in
// files that only grow, in a folder of the agent's state folder.
//
// The agent writes a record after its answers to requests and outside of every lock, before the
// ledger forgets the record's attachment, and never syncs the file. So the end of the process costs
// no record, and the end of the node may cost some. A disk that is full, fails or hangs costs
// records of the history alone: the agent counts them, says so once, and goes on.
//
// The files are segments, named by their number. A record is a line:
//
//	1 4d1f0c2e {"past":{...},"boot":"...","at":123}
//
// The first word is the version of the format, the second the CRC-32C of the rest. So a reader can
// leave out a torn line, or a line of a newer version, and loses no other line. Segments that the
// limits no longer cover are removed, the oldest first; no file is ever rewritten.
//
// Open history.go for the queue in memory, folder.go for the files, and read.go for readers,
// which need no agent.
package history
