// Package ledger keeps the one truth of an agent: which owners there are, with
// their names and holds, which names rest, and which deletions came before
// their ADD. Everything is written here before it is taken in the world, and
// IPAM, tables and status are views of it.
//
// The file is a bbolt database. One goroutine writes it, and takes everything
// that waits into one transaction (natural group commit), so that many callers
// share one fsync. What is read comes from memory, which changes only after
// the transaction that changed it is durable.
//
// What to open first:
//
//	types.go   what goes in and comes out; ledger.go: open, close, read
//	op.go      what a commit is made of: Begin, Update, Releasing, Forget, Bury
//	writer.go  the queue, the batches, and the goroutine that writes them
//	batch.go   a transaction being put together; stage.go: what is refused, and why
//	store.go   a batch on its way into the file; bucket.go: its records
//	space.go   spare pages, so that a full disk stops ADD first and DEL last
//	schema.go  what stands in the file; record.go: how a record is sealed
//	pages.go   reading a bbolt file without trusting a byte of it
//	span.go    a rest in the file, and what is left of it in another boot
//	load.go    from records to memory; snapshot.go: the same for people
package ledger
