// Package ledger keeps the one truth of an agent: which owners there are, with their names
// and holds, which names rest, and which deletions an ADD may come too late for. The agent
// writes everything here before it takes it in the world; IPAM, tables and status are views
// of the ledger.
//
// The file is a log: a snapshot, then a batch of sectors for each transaction, then zeros for
// the next ones. A transaction is one write and one fdatasync, which changes no metadata of the
// file system. One goroutine writes the file. It puts all commits that wait into one transaction
// (natural group commit), so that many callers share one fdatasync. Readers read from memory, which
// changes only after the transaction is durable. A log that has outgrown its snapshot is written
// anew beside the old one.
//
// Open these first:
//
//	types.go   what callers give and get; ledger.go: open, close, read
//	op.go      the parts of a commit: Begin, Update, Releasing, Forget, Bury
//	writer.go  the queue of commits, and the goroutine that writes them
//	batch.go   a transaction that is being put together; stage.go: what it refuses, and why
//	store.go   writes a batch into the file; changes.go: the records in it
//	sector.go  what is in a sector, and how damage shows; log.go: reads a file of sectors
//	space.go   zeros ahead of the log, so that a full disk stops ADD first and DEL last
//	rewrite.go writes the file anew, into a file beside it (aside.go); volume.go: the system calls of all of that
//	schema.go  the records in the file; record.go: how a record is sealed
//	old.go     reads a ledger of version 1, a bbolt database; pages.go: its pages
//	packed.go  rests and tombstones in memory; forms.go: as bytes
//	span.go    a rest in the file, and how much of it is left in another boot
//	load.go    reads records into memory; snapshot.go: shows them to people
package ledger
