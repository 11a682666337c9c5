// Package ledger keeps the one truth of an agent: which owners there are, with their names
// and holds, which names rest, and which deletions an ADD may come too late for. The agent
// writes everything here before it takes it in the world; IPAM, tables and status are views
// of the ledger.
//
// The file is a bbolt database. One goroutine writes it. It puts all commits that wait into
// one transaction (natural group commit), so that many callers share one fsync. Readers read
// from memory, which changes only after the transaction is durable.
//
// What to open first:
//
//	types.go   what callers give and get; ledger.go: open, close, read
//	op.go      the parts of a commit: Begin, Update, Releasing, Forget, Bury
//	writer.go  the queue of commits, and the goroutine that writes them
//	batch.go   a transaction that is being put together; stage.go: what it refuses, and why
//	store.go   writes a batch into the file; bucket.go: writes its records
//	space.go   spare pages, so that a full disk stops ADD first and DEL last
//	schema.go  the records in the file; record.go: how a record is sealed
//	pages.go   reads a bbolt file without trusting a byte of it
//	span.go    a rest in the file, and how much of it is left in another boot
//	load.go    reads records into memory; snapshot.go: shows them to people
package ledger
